-- The learner's verbs: claim, open, take, resize, pending, begin_attempt, end_attempt, settle, revoke, dead_letter; and requeue,
-- which needs no generation.

-- Execute a call of the consumer; `args`: token, generation, turn, then the arguments of `run`. Every call counts as a
-- turn. If the store's count differs from the consumer's, the store has lost the consumer's last calls. The verbs below
-- that use this function list only the arguments of `run`.
local function consume(k, verb, args, run)
  local token, generation, turn = unpack(args, 1, 3)
  local refused = check_generation(generation, number(k.generations, 'current'))
  if refused then return refused end
  return run_once(k, verb, token, function()
    local known = number(k.generations, 'turn')
    if known ~= tonumber(turn) then
      return redis.error_reply('RESET the store is at turn ' .. known .. ', the learner at ' .. turn)
    end
    set(k.generations, 'turn', known + 1)
    return run(unpack(args, 4))
  end)
end

local function delete_payload(k, header)
  if header then last('DEL', k.payload .. header.episode) end
end

-- Delete all episodes, and set the ledger to that of a checkpoint: fields and values in `args` from `first` on. This is
-- not undone if `open` fails, but done again when it is repeated.
local function reset_store(k, args, first)
  for _, stream in ipairs({k.episodes, k.dead}) do
    for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
      local header = parse_entry(entry)
      if header then redis.call('DEL', k.payload .. header.episode) end
    end
  end
  redis.call('DEL', k.episodes, k.dead, k.ledger, k.attempts, k.health, k.retired)
  for i = first, #args, 2 do redis.call('HSET', k.ledger, args[i], args[i + 1]) end
end

-- Acknowledge a pending entry; false if it is not pending.
local function acknowledge(k, id)
  local consumer = redis.call('HGET', k.generations, 'consumer')
  if redis.call('XACK', k.episodes, GROUP, id) == 0 then return false end
  if consumer then undo_with('XCLAIM', k.episodes, GROUP, consumer, 0, id, 'FORCE', 'JUSTID') end
  return true
end

-- Drop queued and pending episodes that are fenced by the current generation.
local function drop_fenced(k, current)
  for _, entry in ipairs(redis.call('XRANGE', k.episodes, '-', '+')) do
    local id, header = entry[1], parse_entry(entry)
    if header and is_fenced(k, header, current) then
      if acknowledge(k, id) then
        count(k, 'pending', -1)
      else
        count(k, 'queued', -1)
        count(k, 'queued_bytes', -tonumber(header.bytes))
      end
      last('XDEL', k.episodes, id)
      unset(k.attempts, id)
      delete_payload(k, header)
      count(k, 'fenced', 1)
    end
  end
end

-- Count queued and pending episodes again if the stream, to which actors may add and which they may trim, does not hold
-- as many. Foreign entries are removed; episodes that were accepted and are nowhere now are counted as `missing`.
local function recount(k)
  local pending = redis.call('XPENDING', k.episodes, GROUP)[1]
  local waiting = redis.call('XLEN', k.episodes) - pending
  local t = tally(k, {'queued', 'pending', 'queued_bytes', 'accepted', unpack(SETTLED)})
  if t.get('queued') == waiting and t.get('pending') == pending and t.get('queued_bytes') >= 0 then return end
  local queued, bytes = 0, 0
  local after = info(redis.call('XINFO', 'GROUPS', k.episodes)[1], 'last-delivered-id')
  repeat
    local entries = redis.call('XRANGE', k.episodes, '(' .. after, '+', 'COUNT', 1000)
    for _, entry in ipairs(entries) do
      local size = bytes_of(entry)
      if size then
        queued, bytes = queued + 1, bytes + size
      else
        redis.call('XDEL', k.episodes, entry[1])
        count(k, 'foreign', 1)
      end
      after = entry[1]
    end
  until #entries == 0
  t.set('queued', queued)
  t.set('pending', pending)
  t.set('queued_bytes', bytes)
  local missing = t.get('accepted') - queued - pending
  for _, term in ipairs(SETTLED) do missing = missing - t.get(term) end
  if missing > 0 then t.add('missing', missing) end
  t.write()
end

-- Write a stream anew without entries that are foreign or have an id that is no time. Returns the ids of the others.
local function renew(k, stream)
  local entries, kept = redis.call('XRANGE', stream, '-', string.format('%.0f', MAX_INTEGER)), {}
  redis.call('DEL', stream)
  for _, entry in ipairs(entries) do
    if parse_entry(entry) then
      redis.call('XADD', stream, entry[1], unpack(entry[2]))
      kept[entry[1]] = true
    end
  end
  return kept
end

-- Undo what another writer did to the streams: renew those that are used up, and forget pending entries that were
-- removed. All pending entries belong to `consumer`.
local function repair(k, consumer)
  if is_used_up(k.dead) then renew(k, k.dead) end
  local pending = redis.call('XPENDING', k.episodes, GROUP)[1]
  local known = pending > 0 and redis.call('XPENDING', k.episodes, GROUP, '-', '+', pending) or {}
  if is_used_up(k.episodes) then
    local kept, taken = renew(k, k.episodes), 0
    for _, p in ipairs(known) do taken = taken + (kept[p[1]] and 1 or 0) end
    redis.call('XGROUP', 'CREATE', k.episodes, GROUP, '0', 'MKSTREAM')
    if taken > 0 then -- pending entries are the oldest
      redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', taken, 'STREAMS', k.episodes, '>')
    end
  else
    for _, p in ipairs(known) do
      if #redis.call('XRANGE', k.episodes, p[1], p[1]) == 0 then redis.call('XACK', k.episodes, GROUP, p[1]) end
    end
  end
end

-- Return an error if a stream is used up, so that the consumer opens a new generation, which renews it.
local function check_streams(...)
  for _, stream in ipairs({...}) do
    if is_used_up(stream) then
      return redis.error_reply('RESET another writer used up the ids of ' .. stream .. ', which is written anew')
    end
  end
end

-- token, number -> {number}
-- Fences all older generations, and changes nothing else.
function verbs.claim(k, args)
  local token, claimed = unpack(args)
  return run_once(k, 'claim', token, function()
    local current = number(k.generations, 'current')
    if tonumber(claimed) <= current then
      return redis.error_reply('FENCED generation ' .. claimed .. ' cannot be claimed: the newest is ' .. current)
    end
    set(k.generations, 'current', claimed)
    return {tonumber(claimed)}
  end)
end

-- token, restored_version, consumer, lower bounds of the number (exclusive) and of the next version, id for a new
-- store, claimed number (0 = the next one), the queue's max_episodes, max_bytes, max_episode_bytes and
-- dead_letters_kept, and from the checkpoint: store and turn (0 = none), then the ledger's fields and values...
-- -> {number, next version, turn, store}
function verbs.open(k, args)
  local token, restored_version, consumer, floor_number, floor_next, id, claimed = unpack(args, 1, 7)
  local max_episodes, max_bytes, max_episode_bytes, letters_kept, store, turn = unpack(args, 8, 13)
  return run_once(k, 'open', token, function()
    local current = number(k.generations, 'current')
    if claimed ~= '0' and tonumber(claimed) < current then
      return redis.error_reply('FENCED generation ' .. claimed .. ' is not open: the newest is ' .. current)
    end
    local known = redis.call('HMGET', k.generations, 'store', 'turn')
    local lost = store ~= '0' and (known[1] ~= store or (tonumber(known[2] or '0') or 0) < tonumber(turn))
    if lost then
      reset_store(k, args, 14)
      redis.call('HSET', k.generations, 'turn', turn)
    end
    if lost or not known[1] then set(k.generations, 'store', id) end
    set(k.generations, 'turn', 1 + number(k.generations, 'turn'))

    local generation = claimed ~= '0' and tonumber(claimed) or math.max(current, tonumber(floor_number)) + 1
    local next_version = math.max(head_version(k) + 1, tonumber(restored_version) + 1, number(k.generations, 'next'))
    local opened_before = redis.call('HEXISTS', k.generations, 'next') == 1
    if lost or not opened_before then next_version = math.max(next_version, tonumber(floor_next)) end
    local previous = redis.call('HGET', k.generations, 'consumer')
    set(k.generations, 'current', generation, 'consumer', consumer,
      'back:' .. generation, restored_version, 'next', next_version,
      'max_episodes', max_episodes, 'max_bytes', max_bytes,
      'max_episode_bytes', max_episode_bytes, 'dead_letters_kept', letters_kept)
    redis.pcall('XGROUP', 'CREATE', k.episodes, GROUP, '0', 'MKSTREAM') -- an error means that the group exists
    local cursor = '0-0'
    repeat
      local reply = redis.call('XAUTOCLAIM', k.episodes, GROUP, consumer, 0, cursor, 'COUNT', 1000, 'JUSTID')
      cursor = reply[1]
    until cursor == '0-0'
    if previous and previous ~= consumer then redis.call('XGROUP', 'DELCONSUMER', k.episodes, GROUP, previous) end
    repair(k, consumer)
    recount(k)
    drop_fenced(k, generation)
    last('XADD', k.room, 'MAXLEN', 1, '*', 'opened', generation)
    return {generation, next_version, number(k.generations, 'turn'), redis.call('HGET', k.generations, 'store')}
  end)
end

-- Return the entries of `ids`, in their order, false if there is none. One range read finds those that are adjacent in
-- the stream, as entries taken together are.
local function find(k, ids)
  local found, range = {}, {}
  if #ids > 1 then range = redis.call('XRANGE', k.episodes, ids[1], ids[#ids], 'COUNT', #ids) end
  for i, id in ipairs(ids) do
    local entry = range[i]
    if not entry or entry[1] ~= id then entry = redis.call('XRANGE', k.episodes, id, id)[1] end
    found[i] = entry or false
  end
  return found
end

-- Remove pending entries, all of which belong to the current consumer. Returns their ids, and the REFs of those that
-- nobody removed from the stream.
local function release(k, ids)
  local released, refs = {}, {}
  for i, entry in ipairs(find(k, ids)) do
    if acknowledge(k, ids[i]) then
      released[#released + 1] = ids[i]
      if entry then refs[#refs + 1] = entry[2][2] end
    end
  end
  if #released > 0 then
    last('XDEL', k.episodes, unpack(released))
    unset(k.attempts, unpack(released))
    count(k, 'pending', -#released)
  end
  return released, refs
end

-- The largest id before that of an entry.
local function id_before(id)
  local ms, number_in_ms = string.match(id, '^(%d+)-(%d+)$')
  if number_in_ms == '0' then return string.format('%.0f-18446744073709551615', ms - 1) end
  return ms .. '-' .. string.format('%.0f', number_in_ms - 1)
end

-- count -> {last id, {entry id, REF, ...}}
-- If none was taken, the consumer waits for entries after the last id.
function verbs.take(k, args)
  return consume(k, 'take', args, function(wanted)
    local refused = check_streams(k.episodes, k.dead)
    if refused then return refused end
    recount(k)
    local consumer = redis.call('HGET', k.generations, 'consumer')
    local read = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', wanted, 'STREAMS', k.episodes, '>')
    local taken, bytes, entries = {}, 0, read and read[1][2] or {}
    if #entries > 0 then undo_with('XGROUP', 'SETID', k.episodes, GROUP, id_before(entries[1][1])) end
    for _, entry in ipairs(entries) do
      undo_with('XACK', k.episodes, GROUP, entry[1])
      local size = bytes_of(entry)
      if size then
        bytes = bytes + size
        taken[#taken + 1] = entry[1]
        taken[#taken + 1] = entry[2][2]
      else
        last('XACK', k.episodes, GROUP, entry[1])
        last('XDEL', k.episodes, entry[1])
        count(k, 'foreign', 1)
      end
    end
    if #taken > 0 then
      local t = tally(k, {'queued', 'pending', 'queued_bytes'})
      t.add('queued', -#taken / 2)
      t.add('pending', #taken / 2)
      t.add('queued_bytes', -bytes)
      t.write()
      last('XADD', k.room, 'MAXLEN', 1, '*', 'taken', #taken / 2)
    end
    local newest = #taken == 0 and redis.call('XREVRANGE', k.episodes, '+', '-', 'COUNT', 1)[1]
    return {newest and newest[1] or '0-0', taken}
  end)
end

-- max_episodes -> {}; changes this limit of the queue
function verbs.resize(k, args)
  return consume(k, 'resize', args, function(max_episodes)
    set(k.generations, 'max_episodes', max_episodes)
    return {}
  end)
end

-- generation -> {entry id, REF, ...}
function verbs.pending(k, args)
  local refused = check_generation(args[1], number(k.generations, 'current'))
  if refused then return refused end
  local consumer = redis.call('HGET', k.generations, 'consumer')
  local entries = {}
  local known = redis.call('XPENDING', k.episodes, GROUP)[1]
  for _, p in ipairs(redis.call('XPENDING', k.episodes, GROUP, '-', '+', known + 1, consumer)) do
    local entry = redis.call('XRANGE', k.episodes, p[1], p[1])[1]
    if entry then
      entries[#entries + 1] = entry[1]
      entries[#entries + 1] = entry[2][2]
    end
  end
  return entries
end

-- entry id -> {attempts that began and did not end}
function verbs.begin_attempt(k, args)
  return consume(k, 'begin_attempt', args, function(id)
    local consumer = redis.call('HGET', k.generations, 'consumer')
    if #redis.call('XPENDING', k.episodes, GROUP, id, id, 1, consumer) == 0 then return {0} end
    local attempts = 1 + number(k.attempts, id)
    set(k.attempts, id, attempts)
    return {attempts}
  end)
end

-- entry id -> {}; resets the attempts
function verbs.end_attempt(k, args)
  return consume(k, 'end_attempt', args, function(id)
    unset(k.attempts, id)
    return {}
  end)
end

-- ledger term, entry ids... -> ids settled
function verbs.settle(k, args)
  return consume(k, 'settle', args, function(term, ...)
    local settled, refs = release(k, {...})
    local payloads = {}
    for i, ref in ipairs(refs) do payloads[i] = k.payload .. string.match(ref, EPISODE) end
    if #payloads > 0 then last('DEL', unpack(payloads)) end
    count(k, term, #settled)
    return settled
  end)
end

-- count -> {}
-- Counts episodes as lost that updates trained on which the restored checkpoint lacks.
function verbs.revoke(k, args)
  return consume(k, 'revoke', args, function(revoked)
    count(k, 'trained', -revoked)
    count(k, 'trained_then_lost', tonumber(revoked))
    return {}
  end)
end

-- entry id, reason -> {1 or 0}
function verbs.dead_letter(k, args)
  return consume(k, 'dead_letter', args, function(id, reason)
    local refused = check_streams(k.dead)
    if refused then return refused end
    if not find(k, {id})[1] then return {0} end
    local _, refs = release(k, {id})
    if #refs == 0 then return {0} end
    local _, limits = generation_and_limits(k)
    local header = parse(refs[1])
    add_dead_letter(k, header, redis.call('STRLEN', k.payload .. header.episode), reason, limits)
    return {1}
  end)
end

-- token, dead id -> {status}
function verbs.requeue(k, args)
  local token, id = unpack(args)
  return run_once(k, 'requeue', token, function()
    local letter = redis.call('XRANGE', k.dead, id, id)[1]
    local header = letter and parse_entry(letter)
    local bytes = header and redis.call('STRLEN', k.payload .. header.episode) or 0
    if bytes == 0 then return {'MISSING'} end
    local current, limits = generation_and_limits(k)
    if is_fenced(k, header, current) then return {'FENCED'} end
    if not limits or is_used_up(k.episodes)
      or is_full(count_waiting(k), number(k.ledger, 'queued_bytes'), bytes, limits) then return {'BUSY'} end
    last('XDEL', k.dead, id)
    count(k, 'dead_lettered', -1)
    count(k, 'dead_bytes', -bytes)
    append(k.episodes, 'ref', header.ref)
    count(k, 'queued', 1)
    count(k, 'queued_bytes', bytes)
    return {'OK'}
  end)
end
