-- Shared by all verbs: the keys, and functions on them. `lua_library.py` concatenates the files of this folder into one
-- function library, or into one script whose first argument names the verb.
--
-- Each verb is atomic, also if it fails: see `transact`. All keys share the hash tag {namespace}, so that they are in one cluster slot. A verb receives
-- only the keys that it needs, and access rights are checked against these. Its first argument holds their full names, by
-- the names below.
--
-- Key          Type     Content
-- episodes     stream   Queued and pending episodes: field `ref`, in the format REF below. Read by the group
--                       `learner`, one consumer at a time. Never trim it: that would lose entries.
-- ledger       hash     All counts, under the names of the Python class `Ledger`, and
--                         `actor:<actor>/<incarnation>:<count>`  counts of one incarnation (class `ActorLedger`)
--                         `actor:<actor>/retired:<count>`        sums over all older incarnations of the actor
--                         `actor:<actor>:incarnation`            the newest incarnation
--                         `actor:<actor>:listed`                 incarnations with counts of their own, ascending
--                       Actors may write to this hash, so nothing is decided by its totals.
-- retired      hash     `<actor>/<incarnation>` -> the counts of an incarnation that is part of `.../retired`
-- generations  hash     `current`              the newest generation claimed or opened
--                       `consumer`             name of its consumer
--                       `back:<generation>`    version of the weights that this generation restored
--                       `next`                 first version that the current generation may publish
--                       `max_episodes`, `max_bytes`, `max_episode_bytes`, `dead_letters_kept`
--                                              limits of the queue in the learner's configuration
--                       `store`                random id, chosen when the first generation opens
--                       `turn`                 number of consumer calls executed
-- weights      hash     `head`, `digest`       newest published version, and what identifies its manifest
--                       `manifest:<version>`   manifest, with the hash of the weights
--                       `payload:<version>`    key of the payload
-- dead         stream   Dead letters: fields `ref` and `reason`
-- room         stream   One entry, which a `take` that made room in the queue replaces: producers wait for it
-- attempts     hash     entry id -> decoding attempts that began and did not end
-- replies      hash     verb -> token and reply of its last call, so that a retry is not executed twice
-- health       hash     `learner` and `<actor>/<incarnation>` -> their last report, JSON
-- imported     hash     id in an episode file -> id under which it was accepted
-- payload:     string   One key per episode, `payload:<episode id>`: its encoding. Expires unless its REF is accepted.
-- weights:     string   One key per version, `weights:<generation>:<version>`: its payload. Expires unless published.

local GROUP = 'learner'
-- REF: head version at the time of the put, generation, oldest and newest version, payload bytes, and episode id
-- (run/actor/incarnation/sequence). One string, as Lua is much faster on few long strings than on many short ones.
local REF = '^(%-?%d+) (%d+) (%-?%d+) (%-?%d+) (%d+) (([^/]+/[^/]+/%d+)/(%d+))$'
local EPISODE = '^%-?%d+ %d+ %-?%d+ %-?%d+ %d+ (.+)$' -- extracts the episode id from a valid REF
-- Same as in `actors/types/names.py`.
local NAME, LONGEST_NAME = '^[A-Za-z0-9_][A-Za-z0-9._-]*$', 100
local verbs = {}

-- Read a number; 0 if the field holds none. Actors have write access to the ledger, and must not crash the learner.
local function number(key, field)
  return tonumber(redis.call('HGET', key, field) or '0') or 0
end

-- Redis does not roll back a verb that fails. So each write records the command that undoes it, and what cannot be
-- undone is done last.
local undoing, remaining = {}, {}

local function last(...) remaining[#remaining + 1] = {...} end

local function undo_with(...) undoing[#undoing + 1] = {...} end

-- Execute a verb: all of it, or nothing if a command fails.
local function transact(verb, k, args)
  undoing, remaining = {}, {}
  local succeeded, reply = pcall(verb, k, args)
  local commands = succeeded and remaining or undoing
  local first, final, step = 1, #commands, 1
  if not succeeded then first, final, step = #commands, 1, -1 end
  for i = first, final, step do redis.pcall(unpack(commands[i])) end
  if succeeded then return reply end
  return redis.error_reply(type(reply) == 'table' and reply.err or tostring(reply))
end

-- Record how to restore fields of a hash that had these values.
local function undo_fields(key, fields, values)
  for i, field in ipairs(fields) do
    if values[i] then undo_with('HSET', key, field, values[i]) else undo_with('HDEL', key, field) end
  end
end

-- Set fields of a hash: field, value, ...
local function set(key, ...)
  local flat, fields = {...}, {}
  for i = 1, #flat, 2 do fields[#fields + 1] = flat[i] end
  undo_fields(key, fields, redis.call('HMGET', key, unpack(fields)))
  redis.call('HSET', key, ...)
end

-- Remove fields of a hash.
local function unset(key, ...)
  undo_fields(key, {...}, redis.call('HMGET', key, ...))
  redis.call('HDEL', key, ...)
end

-- Add an entry to a stream: field, value, ...
local function append(key, ...) undo_with('XDEL', key, redis.call('XADD', key, '*', ...)) end

-- Add `change` to a count of the ledger.
local function count(k, field, change)
  if change == 0 then return end
  local before = redis.call('HGET', k.ledger, field)
  undo_fields(k.ledger, {field}, {before})
  redis.call('HSET', k.ledger, field, string.format('%.0f', (tonumber(before or '0') or 0) + change))
end

-- Return the value of a field in a reply of XINFO.
local function info(reply, name)
  for i = 1, #reply, 2 do
    if reply[i] == name then return reply[i + 1] end
  end
end

local function head_version(k)
  return tonumber(redis.call('HGET', k.weights, 'head') or '-1')
end

-- A cache of ledger fields: reads `fields` with one command, further ones on demand; `write` stores all changes with
-- one command.
local function tally(k, fields)
  local stored, values, changed, t = {}, {}, {}, {}
  local function read(field, value)
    stored[field], values[field] = value, value and tonumber(value) or 0
  end
  for i, value in ipairs(redis.call('HMGET', k.ledger, unpack(fields))) do read(fields[i], value) end
  function t.get(field)
    if not values[field] then read(field, redis.call('HGET', k.ledger, field)) end
    return values[field]
  end
  function t.set(field, value)
    t.get(field) -- what undoes the change must be known
    values[field], changed[field] = value, true
  end
  function t.add(field, change) values[field], changed[field] = t.get(field) + change, true end
  function t.write()
    local flat = {}
    for field in pairs(changed) do
      undo_fields(k.ledger, {field}, {stored[field]})
      flat[#flat + 1] = field
      flat[#flat + 1] = string.format('%.0f', values[field])
    end
    if #flat > 0 then redis.call('HSET', k.ledger, unpack(flat)) end
  end
  return t
end

-- Doubles are exact up to 2^53 - 1; numbers of up to 15 digits need no check.
local MAX_INTEGER, SAFE_DIGITS = 9007199254740991, 15

local function is_exact(...)
  for _, text in ipairs({...}) do
    if #text > 17 or math.abs(tonumber(text)) > MAX_INTEGER then return false end
  end
  return true
end

local function is_name(text)
  return #text <= LONGEST_NAME and string.find(text, NAME) ~= nil
end

-- Whether an unsigned number is exact and has no leading zeros, which would give one episode two ids, and count it twice.
local function is_canonical(text)
  return (string.byte(text) ~= 48 or #text == 1) and (#text <= SAFE_DIGITS or is_exact(text))
end

-- The incarnations of the episodes seen last: run/actor/incarnation -> {actor, incarnation}, false if it is invalid.
-- Checking each only once takes a third off the time of `parse`.
local seen, seen_count = {}, 0

local function incarnation_of(name)
  local found = seen[name]
  if found == nil then
    local run, actor, incarnation = string.match(name, '^(.+)/(.+)/(.+)$')
    found = is_name(run) and is_name(actor) and is_canonical(incarnation) and {actor, incarnation} or false
    if seen_count == 1000 then seen, seen_count = {}, 0 end
    seen[name], seen_count = found, seen_count + 1
  end
  return found
end

-- Split a REF into head version, generation, oldest and newest version, bytes, episode, sequence, and the result of
-- `incarnation_of`; nil if it is invalid.
local function split(ref)
  local head, generation, oldest, newest, bytes, episode, name, sequence = string.match(ref, REF)
  if not head then return nil end
  local known = incarnation_of(name)
  if not known or not is_canonical(sequence) then return nil end
  local is_safe = #head <= SAFE_DIGITS and #generation <= SAFE_DIGITS and #oldest <= SAFE_DIGITS
    and #newest <= SAFE_DIGITS and #bytes <= SAFE_DIGITS
  if not is_safe and not is_exact(head, generation, oldest, newest, bytes) then return nil end
  return head, generation, oldest, newest, bytes, episode, sequence, known
end

-- Parse a REF into a header; nil if it is invalid.
local function parse(ref)
  local head, generation, oldest, newest, bytes, episode, sequence, known = split(ref)
  if not head then return nil end
  return {ref = ref, head = head, generation = generation, oldest = oldest, newest = newest, bytes = bytes,
    episode = episode, actor = known[1], incarnation = known[2], sequence = sequence}
end

-- The error for values that no version of Tamiyo sends. They may be of any size and content: shorten and escape them.
local function malformed(message)
  return redis.error_reply('MALFORMED ' .. string.gsub(string.sub(message, 1, 300), '[^ -~]', '?'))
end

-- Parse a stream entry into a header; nil or false if it is foreign.
local function parse_entry(entry)
  return entry[2][1] == 'ref' and parse(entry[2][2])
end

-- The bytes of a stream entry's payload; nil or false if it is foreign.
local function bytes_of(entry)
  if entry[2][1] ~= 'ref' then return false end
  local _, _, _, _, bytes = split(entry[2][2])
  return bytes and tonumber(bytes)
end

-- Return an error unless `generation` is the current one.
local function check_generation(generation, current)
  if tonumber(generation) > current then
    return redis.error_reply('RESET the store does not know generation ' .. generation .. ': its newest is ' .. current)
  elseif tonumber(generation) < current or current == 0 then
    return redis.error_reply('FENCED generation ' .. generation .. ' is not open: the newest is ' .. current)
  end
end

-- Whether a later generation restored a version older than this episode's weights, or the episode is of a run that
-- started afresh since: its learner has opened none of these generations.
local function is_fenced(k, header, current)
  local generation, newest = tonumber(header.generation), tonumber(header.newest)
  if generation > current then return true end
  for later = generation + 1, current do
    local restored = redis.call('HGET', k.generations, 'back:' .. later)
    if restored and newest > tonumber(restored) then return true end
  end
  return false
end

-- Execute a call once: if `token` is that of the verb's last call, whose reply was lost, return its stored reply.
local function run_once(k, verb, token, run)
  local stored = redis.call('HGET', k.replies, verb)
  if stored and string.sub(stored, 1, #token) == token then
    return cjson.decode(string.sub(stored, #token + 1))
  end
  local reply = run()
  if not reply.err then set(k.replies, verb, token .. cjson.encode(reply)) end
  return reply
end

-- The newest generation, 0 if there is none; the limits of the queue as its learner configured them, nil before the
-- first generation opens; and the id of the store's memory.
local function generation_and_limits(k)
  local found = redis.call('HMGET', k.generations, 'current', 'max_episodes', 'max_bytes', 'max_episode_bytes',
    'dead_letters_kept', 'store')
  local limits = found[5] and {episodes = tonumber(found[2]), bytes = tonumber(found[3]),
    episode_bytes = tonumber(found[4]), letters = tonumber(found[5])}
  return tonumber(found[1] or '0'), limits or nil, tonumber(found[6] or '0')
end

-- Whether an entry with an id that is no time was added to a stream, after which there may be no ids left for others.
-- `open` writes such a stream anew.
local function is_used_up(stream)
  local reply = redis.pcall('XINFO', 'STREAM', stream) -- an error means that there is no such stream yet
  return not reply.err and tonumber(string.match(info(reply, 'last-generated-id'), '^%d+')) > MAX_INTEGER
end

-- The number of entries that were not taken.
local function count_waiting(k)
  local pending = redis.pcall('XPENDING', k.episodes, GROUP) -- an error means that there is no group yet
  return math.max(0, redis.call('XLEN', k.episodes) - (pending.err and 0 or pending[1]))
end

-- Whether an episode of so many bytes must wait.
local function is_full(waiting, waiting_bytes, bytes, limits)
  -- an empty queue accepts any size, so that an episode larger than the limit does not wait forever
  return waiting > 0 and (waiting >= limits.episodes or waiting_bytes + bytes > limits.bytes)
end

-- Add a dead letter with a payload of so many bytes, and evict the oldest ones beyond the limits.
local function add_dead_letter(k, header, bytes, reason, limits)
  append(k.dead, 'ref', header.ref, 'reason', reason)
  count(k, 'dead_lettered', 1)
  count(k, 'dead_bytes', bytes)
  local kept, start = redis.call('XLEN', k.dead), '-'
  while kept > limits.letters or (kept > 1 and number(k.ledger, 'dead_bytes') > limits.bytes) do
    local oldest = redis.call('XRANGE', k.dead, start, '+', 'COUNT', 1)[1]
    local evicted = parse_entry(oldest)
    if evicted then
      local payload = k.payload .. evicted.episode
      count(k, 'dead_bytes', -redis.call('STRLEN', payload))
      count(k, 'dead_letters_evicted', 1)
      last('DEL', payload)
    else
      count(k, 'foreign', 1) -- actors have write access to this stream
    end
    last('XDEL', k.dead, oldest[1])
    kept, start = kept - 1, '(' .. oldest[1]
  end
end
