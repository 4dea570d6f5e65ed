-- The verb of the weights: publish.

-- generation, version, manifest, payload key, weights_kept -> {head version, status}
function verbs.publish(k, args)
  local generation, version, manifest, payload, kept = unpack(args)
  local refused = check_generation(generation, number(k.generations, 'current'))
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
