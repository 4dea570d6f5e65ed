-- The verbs of the weight store, which may be on a separate server. Of the generations it knows only `fence`.

-- generation -> {head version}
-- Older generations can no longer publish.
function verbs.fence(k, args)
  local fence = math.max(number(k.weights, 'fence'), tonumber(args[1]))
  set(k.weights, 'fence', fence)
  return {head_version(k)}
end

-- generation, version, manifest, payload key, weights_kept -> {head version, status}
function verbs.publish(k, args)
  local generation, version, manifest, payload, kept = unpack(args)
  local refused = check_generation(generation, number(k.weights, 'fence'))
  if refused then return refused end
  local head = head_version(k)
  if tonumber(version) <= head then
    local repeated = redis.call('HGET', k.weights, 'manifest:' .. version) == manifest
    return {head, repeated and 'OK' or 'OLD'}
  end
  if redis.call('PERSIST', payload) == 0 then return {head, 'MISSING'} end
  undo_with('DEL', payload) -- a retry sets it again
  set(k.weights, 'manifest:' .. version, manifest, 'payload:' .. version, payload, 'head', version,
    'digest', string.sub(redis.sha1hex(manifest), 1, 16))
  local versions = {}
  for _, field in ipairs(redis.call('HKEYS', k.weights)) do
    local found = string.match(field, '^payload:(%d+)$')
    if found then versions[#versions + 1] = tonumber(found) end
  end
  table.sort(versions)
  for i = 1, #versions - tonumber(kept) do
    local field = string.format('%.0f', versions[i])
    last('DEL', redis.call('HGET', k.weights, 'payload:' .. field))
    unset(k.weights, 'manifest:' .. field, 'payload:' .. field)
  end
  return {tonumber(version), 'OK'}
end

-- generation, version -> 'OK'
-- Records on the queue's server a version that was published on a separate weight server.
function verbs.announce(k, args)
  local refused = check_generation(args[1], number(k.weights, 'fence'))
  if refused then return refused end
  if tonumber(args[2]) > head_version(k) then set(k.weights, 'head', args[2]) end
  return 'OK'
end
