-- The verbs of the episode queue and the weight store, each atomic. Loaded as a function library, or as one script whose
-- first argument names the verb. All keys share the hash tag {namespace}, so that they live in one cluster slot.
--
-- KEYS[1] episodes     stream   references to waiting episodes: FIELDS below; group `learner`, one consumer at a time
-- KEYS[2] ledger       hash     every count: accepted, trained, ..., `actor:<actor>/<incarnation>:<count>`,
--                               `actor:<actor>:incarnation` (the latest)
-- KEYS[3] generations  hash     current, consumer, `back:<generation>` = version that it went back to
-- KEYS[4] weights      hash     head, `manifest:<version>`, `payload:<version>` = key of the payload
-- KEYS[5] dead         stream   dead letters: FIELDS, reason
-- KEYS[6] attempts     hash     entry id -> attempts begun
-- KEYS[7] replies      hash     verb -> token and reply of the consumer's latest call, so that a retry repeats nothing
-- KEYS[8] payload      prefix   string per episode id: its bytes; expires until the reference is accepted
--
-- Never trim `episodes`: that loses delivered entries without a word.

local GROUP = 'learner'
local FIELDS = {'episode', 'actor', 'incarnation', 'sequence', 'generation', 'oldest', 'newest', 'bytes'}
local verbs = {}

local function name_keys(keys)
  return {
    episodes = keys[1], ledger = keys[2], generations = keys[3], weights = keys[4],
    dead = keys[5], attempts = keys[6], replies = keys[7], payload = keys[8],
  }
end

local function number(key, field)
  return tonumber(redis.call('HGET', key, field) or '0')
end

local function count(k, field, change)
  redis.call('HINCRBY', k.ledger, field, change)
end

local function head_version(k)
  return tonumber(redis.call('HGET', k.weights, 'head') or '-1')
end

local function parse(fields)
  local header = {}
  for i = 1, #fields, 2 do header[fields[i]] = fields[i + 1] end
  if not header.episode or not header.actor then return nil end
  for i = 3, #FIELDS do
    if not tonumber(header[FIELDS[i]]) then return nil end
  end
  return header
end

local function flatten(header)
  local flat = {}
  for _, name in ipairs(FIELDS) do
    flat[#flat + 1] = name
    flat[#flat + 1] = header[name]
  end
  return flat
end

-- A generation from the future belongs to a store that was lost.
local function is_fenced(k, header)
  local current = number(k.generations, 'current')
  local generation, newest = tonumber(header.generation), tonumber(header.newest)
  if generation > current then return true end
  for later = generation + 1, current do
    local back = redis.call('HGET', k.generations, 'back:' .. later)
    if back and newest > tonumber(back) then return true end
  end
  return false
end

local function check_generation(k, generation)
  local current = number(k.generations, 'current')
  if tonumber(generation) ~= current or current == 0 then
    return redis.error_reply('FENCED generation ' .. generation .. ' is not open, ' .. current .. ' is')
  end
end

-- Repeat the stored reply when this very call was answered before and only the answer got lost.
local function once(k, verb, token, run)
  local stored = redis.call('HGET', k.replies, verb)
  if stored and string.sub(stored, 1, #token) == token then
    return cjson.decode(string.sub(stored, #token + 1))
  end
  local reply = run()
  redis.call('HSET', k.replies, verb, token .. cjson.encode(reply))
  return reply
end

-- Enter an incarnation in the ledger; what the one before it had not sent is lost with it. Returns its prefix.
local function enter(k, actor, incarnation)
  local latest_field = 'actor:' .. actor .. ':incarnation'
  local latest = redis.call('HGET', k.ledger, latest_field)
  if not latest or tonumber(incarnation) > tonumber(latest) then
    redis.call('HSET', k.ledger, latest_field, incarnation)
    if latest then
      local before = 'actor:' .. actor .. '/' .. latest .. ':'
      local unsent = number(k.ledger, before .. 'unsent')
      redis.call('HSET', k.ledger, before .. 'unsent', 0)
      count(k, before .. 'lost_with_actor', unsent)
    end
  end
  return 'actor:' .. actor .. '/' .. incarnation .. ':'
end

-- Count one of the actor's episodes as `term`: it was unsent when last reported, thought lost, or produced since.
local function account(k, who, term)
  if number(k.ledger, who .. 'unsent') > 0 then
    count(k, who .. 'unsent', -1)
  elseif number(k.ledger, who .. 'lost_with_actor') > 0 then
    count(k, who .. 'lost_with_actor', -1)
  else
    count(k, who .. 'produced', 1)
  end
  count(k, who .. term, 1)
end

local function bury(k, header, reason, letters_kept, max_bytes)
  local entry = flatten(header)
  entry[#entry + 1] = 'reason'
  entry[#entry + 1] = reason
  redis.call('XADD', k.dead, '*', unpack(entry))
  count(k, 'dead_lettered', 1)
  count(k, 'dead_bytes', redis.call('STRLEN', k.payload .. header.episode))
  while redis.call('XLEN', k.dead) > tonumber(letters_kept)
    or (redis.call('XLEN', k.dead) > 1 and number(k.ledger, 'dead_bytes') > tonumber(max_bytes)) do
    local oldest = redis.call('XRANGE', k.dead, '-', '+', 'COUNT', 1)[1]
    local payload = k.payload .. parse(oldest[2]).episode
    count(k, 'dead_bytes', -redis.call('STRLEN', payload))
    count(k, 'dead_letters_evicted', 1)
    redis.call('DEL', payload)
    redis.call('XDEL', k.dead, oldest[1])
  end
end

local function full(k, bytes, max_episodes, max_bytes)
  local queued = number(k.ledger, 'queued')
  -- an empty queue takes any episode, or one larger than the bound would wait for ever
  return queued > 0
    and (queued >= tonumber(max_episodes) or number(k.ledger, 'queued_bytes') + tonumber(bytes) > tonumber(max_bytes))
end

local function enqueue(k, header)
  redis.call('XADD', k.episodes, '*', unpack(flatten(header)))
  count(k, 'queued', 1)
  count(k, 'queued_bytes', tonumber(header.bytes))
end

-- FIELDS..., max_episodes, max_bytes, max_episode_bytes, dead_letters_kept -> {status, head version}
function verbs.put(k, args)
  local header = {}
  for i, name in ipairs(FIELDS) do header[name] = args[i] end
  local max_episodes, max_bytes, max_episode_bytes, letters_kept = unpack(args, #FIELDS + 1)
  local payload, bytes = k.payload .. header.episode, tonumber(header.bytes)
  local function refuse(status)
    -- a payload without expiry belongs to the accepted entry that this one duplicates
    if redis.call('PTTL', payload) > 0 then redis.call('DEL', payload) end
    return {status, head_version(k)}
  end

  local sequence_field = 'actor:' .. header.actor .. '/' .. header.incarnation .. ':sequence'
  local highest = redis.call('HGET', k.ledger, sequence_field)
  if highest and tonumber(header.sequence) <= tonumber(highest) then return refuse('DUPLICATE') end
  local who = enter(k, header.actor, header.incarnation)
  if is_fenced(k, header) then
    account(k, who, 'refused_fenced')
    return refuse('FENCED')
  end
  local oversize = bytes > tonumber(max_episode_bytes)
  if not oversize then
    if full(k, bytes, max_episodes, max_bytes) then return refuse('BUSY') end
    if redis.call('EXISTS', payload) == 0 or redis.call('STRLEN', payload) ~= bytes then return refuse('MISSING') end
  end
  redis.call('HSET', k.ledger, sequence_field, header.sequence)
  account(k, who, 'accepted')
  count(k, 'accepted', 1)
  if oversize then
    bury(k, header, bytes .. ' bytes, more than the ' .. max_episode_bytes .. ' allowed', letters_kept, max_bytes)
  else
    redis.call('PERSIST', payload)
    enqueue(k, header)
  end
  return {'OK', head_version(k)}
end

-- actor, incarnation, produced, dropped_backpressure, refused_fenced, unsent
function verbs.report(k, args)
  local actor, incarnation, produced, dropped, refused, unsent = unpack(args)
  local who = enter(k, actor, incarnation)
  local latest = redis.call('HGET', k.ledger, 'actor:' .. actor .. ':incarnation')
  local lost = 0
  if tonumber(incarnation) < tonumber(latest) then lost, unsent = unsent, 0 end
  redis.call('HSET', k.ledger, who .. 'produced', produced, who .. 'dropped_backpressure', dropped,
    who .. 'refused_fenced', refused, who .. 'unsent', unsent, who .. 'lost_with_actor', lost)
  return 'OK'
end

-- token, went_back_to, consumer, floor number, floor next version -> {number, next version}
function verbs.open(k, args)
  local token, went_back_to, consumer, floor_number, floor_next = unpack(args)
  return once(k, 'open', token, function()
    local generation = math.max(number(k.generations, 'current'), tonumber(floor_number)) + 1
    local next_version = math.max(head_version(k) + 1, tonumber(went_back_to) + 1, tonumber(floor_next))
    local previous = redis.call('HGET', k.generations, 'consumer')
    redis.call('HSET', k.generations, 'current', generation, 'consumer', consumer, 'back:' .. generation, went_back_to)
    redis.pcall('XGROUP', 'CREATE', k.episodes, GROUP, '0', 'MKSTREAM') -- fails where the group exists
    local cursor = '0-0'
    repeat
      local claimed = redis.call('XAUTOCLAIM', k.episodes, GROUP, consumer, 0, cursor, 'COUNT', 1000, 'JUSTID')
      cursor = claimed[1]
    until cursor == '0-0'
    if previous and previous ~= consumer then redis.call('XGROUP', 'DELCONSUMER', k.episodes, GROUP, previous) end

    for _, entry in ipairs(redis.call('XRANGE', k.episodes, '-', '+')) do
      local id, header = entry[1], parse(entry[2])
      if header and is_fenced(k, header) then
        if redis.call('XACK', k.episodes, GROUP, id) == 1 then
          count(k, 'pending', -1)
        else
          count(k, 'queued', -1)
          count(k, 'queued_bytes', -tonumber(header.bytes))
        end
        redis.call('XDEL', k.episodes, id)
        redis.call('HDEL', k.attempts, id)
        redis.call('DEL', k.payload .. header.episode)
        count(k, 'fenced', 1)
      end
    end
    return {generation, next_version}
  end)
end

-- Remove a pending entry that the open generation's consumer owns; returns its header, nil when it owns no such entry.
local function release(k, id)
  local consumer = redis.call('HGET', k.generations, 'consumer')
  if #redis.call('XPENDING', k.episodes, GROUP, id, id, 1, consumer) == 0 then return nil end
  local header = parse(redis.call('XRANGE', k.episodes, id, id)[1][2])
  redis.call('XACK', k.episodes, GROUP, id)
  redis.call('XDEL', k.episodes, id)
  redis.call('HDEL', k.attempts, id)
  count(k, 'pending', -1)
  return header
end

-- token, generation, count -> {last id, {{entry id, fields}, ...}}; wait for entries beyond the last id when it is empty
function verbs.take(k, args)
  local token, generation, wanted = unpack(args)
  local refused = check_generation(k, generation)
  if refused then return refused end
  return once(k, 'take', token, function()
    local consumer = redis.call('HGET', k.generations, 'consumer')
    local read = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', wanted, 'STREAMS', k.episodes, '>')
    local taken = {}
    for _, entry in ipairs(read and read[1][2] or {}) do
      local header = parse(entry[2])
      if header then
        count(k, 'queued', -1)
        count(k, 'pending', 1)
        count(k, 'queued_bytes', -tonumber(header.bytes))
        taken[#taken + 1] = {entry[1], flatten(header)}
      else
        redis.call('XACK', k.episodes, GROUP, entry[1])
        redis.call('XDEL', k.episodes, entry[1])
        count(k, 'foreign', 1)
      end
    end
    local last = redis.call('XREVRANGE', k.episodes, '+', '-', 'COUNT', 1)[1]
    return {last and last[1] or '0-0', taken}
  end)
end

-- generation -> {{entry id, fields}, ...}
function verbs.pending(k, args)
  local refused = check_generation(k, args[1])
  if refused then return refused end
  local consumer = redis.call('HGET', k.generations, 'consumer')
  local entries = {}
  for _, p in ipairs(redis.call('XPENDING', k.episodes, GROUP, '-', '+', number(k.ledger, 'pending') + 1, consumer)) do
    local entry = redis.call('XRANGE', k.episodes, p[1], p[1])[1]
    if entry then entries[#entries + 1] = entry end
  end
  return entries
end

-- token, generation, entry id -> attempts
function verbs.begin_attempt(k, args)
  local token, generation, id = unpack(args)
  local refused = check_generation(k, generation)
  if refused then return refused end
  return once(k, 'begin_attempt', token, function()
    local consumer = redis.call('HGET', k.generations, 'consumer')
    if #redis.call('XPENDING', k.episodes, GROUP, id, id, 1, consumer) == 0 then return {0} end
    return {redis.call('HINCRBY', k.attempts, id, 1)}
  end)
end

-- token, generation, term of the ledger, entry ids... -> ids settled
function verbs.settle(k, args)
  local token, generation, term = unpack(args, 1, 3)
  local refused = check_generation(k, generation)
  if refused then return refused end
  return once(k, term, token, function()
    local settled = {}
    for i = 4, #args do
      local header = release(k, args[i])
      if header then
        redis.call('DEL', k.payload .. header.episode)
        count(k, term, 1)
        settled[#settled + 1] = args[i]
      end
    end
    return settled
  end)
end

-- token, generation, entry id, reason, dead_letters_kept, max_bytes -> {1 or 0}
function verbs.dead_letter(k, args)
  local token, generation, id, reason, letters_kept, max_bytes = unpack(args)
  local refused = check_generation(k, generation)
  if refused then return refused end
  return once(k, 'dead_letter', token, function()
    local header = release(k, id)
    if not header then return {0} end
    bury(k, header, reason, letters_kept, max_bytes)
    return {1}
  end)
end

-- token, dead id, max_episodes, max_bytes -> {status}
function verbs.requeue(k, args)
  local token, id, max_episodes, max_bytes = unpack(args)
  return once(k, 'requeue', token, function()
    local letter = redis.call('XRANGE', k.dead, id, id)[1]
    local header = letter and parse(letter[2])
    local bytes = header and redis.call('STRLEN', k.payload .. header.episode) or 0
    if bytes == 0 then return {'MISSING'} end
    if is_fenced(k, header) then return {'FENCED'} end
    if full(k, bytes, max_episodes, max_bytes) then return {'BUSY'} end
    redis.call('XDEL', k.dead, id)
    count(k, 'dead_lettered', -1)
    count(k, 'dead_bytes', -bytes)
    header.bytes = bytes
    enqueue(k, header)
    return {'OK'}
  end)
end

-- -> {ledger hash, entries in the stream}
function verbs.ledger(k)
  return {redis.call('HGETALL', k.ledger), redis.call('XLEN', k.episodes)}
end

-- generation, version, manifest, payload key, weights_kept -> {status, head version}
function verbs.publish(k, args)
  local generation, version, manifest, payload, kept = unpack(args)
  local refused = check_generation(k, generation)
  if refused then return refused end
  local head = head_version(k)
  if tonumber(version) <= head then
    local repeated = redis.call('HGET', k.weights, 'manifest:' .. version) == manifest
    return {repeated and 'OK' or 'OLD', head}
  end
  if redis.call('PERSIST', payload) == 0 then return {'MISSING', head} end
  redis.call('HSET', k.weights, 'manifest:' .. version, manifest, 'payload:' .. version, payload, 'head', version)
  local versions = {}
  for _, field in ipairs(redis.call('HKEYS', k.weights)) do
    local found = string.match(field, '^payload:(%d+)$')
    if found then versions[#versions + 1] = tonumber(found) end
  end
  table.sort(versions)
  for i = 1, #versions - tonumber(kept) do
    local field = string.format('%.0f', versions[i])
    redis.call('DEL', redis.call('HGET', k.weights, 'payload:' .. field))
    redis.call('HDEL', k.weights, 'manifest:' .. field, 'payload:' .. field)
  end
  return {'OK', tonumber(version)}
end
