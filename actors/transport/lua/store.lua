-- What all verbs share. The files of this folder make one function library, or one script whose first argument names
-- the verb. Each verb is atomic. All keys share the hash tag {namespace}, so that they live in one cluster slot; a verb
-- is given those that it needs, which is what access rights are checked against.
--
-- episodes     stream   field `ref`: a waiting episode, as REF; group `learner`, one consumer at a time
-- ledger       hash     every count: accepted, trained, ..., `actor:<actor>/<incarnation>:<count>`,
--                       `actor:<actor>/retired:<count>` (of older incarnations together), `actor:<actor>:incarnation`
--                       (the latest), `actor:<actor>:listed` (those with counts of their own, rising);
--                       `store`: an id of its own; `turn`: the consumer's calls
-- retired      hash     `<actor>/<incarnation>` -> its counts, of an incarnation without counts of its own in `ledger`
-- generations  hash     current (claimed or open), consumer, `back:<generation>` = version that it went back to, `next` = least version
--                       that the current one may publish
-- made         hash     version -> episodes acknowledged whose update made it, while it may still be given up
-- weights      hash     head, `manifest:<version>`, `payload:<version>` = key of the payload, `fence` = generation
-- dead         stream   dead letters: ref, reason
-- attempts     hash     entry id -> probes begun
-- replies      hash     verb -> token and reply of the latest call, so that a retry repeats nothing
-- health       hash     `learner`, `<actor>/<incarnation>` -> what they tell of themselves, JSON
-- payload:     prefix   string per episode id: its bytes; expires until the reference is accepted
--
-- Never trim `episodes`: that loses delivered entries without a word.

local GROUP = 'learner'
-- Head version when it was put, generation, oldest and newest version, bytes, and run/actor/incarnation/sequence. One
-- string: Lua handles few and long ones much faster than many and short ones.
local REF = '^(%-?%d+) (%d+) (%-?%d+) (%-?%d+) (%d+) (([^/]+)/([^/]+)/(%d+)/(%d+))$'
local EPISODE = '^%-?%d+ %d+ %-?%d+ %-?%d+ %d+ (.+)$' -- the last part of a REF that was parsed before
-- As `actors/types/names.py` has it.
local NAME, LONGEST_NAME = '^[A-Za-z0-9_][A-Za-z0-9._-]*$', 100
local verbs = {}

local function name_keys(keys)
  local named = {}
  for _, key in ipairs(keys) do named[string.match(key, '}:([a-z]+)')] = key end
  return named
end

-- 0 where there is no number: an actor may write into the ledger, and what it writes must not end the learner.
local function number(key, field)
  return tonumber(redis.call('HGET', key, field) or '0') or 0
end

local function count(k, field, change)
  if change == 0 then return end
  local counted = redis.pcall('HINCRBY', k.ledger, field, change)
  if type(counted) == 'table' then redis.call('HSET', k.ledger, field, change) end -- it held no number
end

local function head_version(k)
  return tonumber(redis.call('HGET', k.weights, 'head') or '-1')
end

-- The ledger as it will be after `write`: fields are read once, those of `fields` together, and all that changed are
-- written together.
local function tally(k, fields)
  local values, changed, t = {}, {}, {}
  for i, value in ipairs(redis.call('HMGET', k.ledger, unpack(fields))) do values[fields[i]] = tonumber(value or '0') or 0 end
  function t.get(field)
    if not values[field] then values[field] = number(k.ledger, field) end
    return values[field]
  end
  function t.set(field, value) values[field], changed[field] = tonumber(value), true end
  function t.add(field, change) t.set(field, t.get(field) + change) end
  function t.write()
    local flat = {}
    for field in pairs(changed) do
      flat[#flat + 1] = field
      flat[#flat + 1] = string.format('%.0f', values[field])
    end
    if #flat > 0 then redis.call('HSET', k.ledger, unpack(flat)) end
  end
  return t
end

local LARGEST, SURE = 9007199254740991, 15 -- beyond it numbers here are not exact; so many digits never are beyond it

local function exact(...)
  for _, text in ipairs({...}) do
    if #text > 17 or math.abs(tonumber(text)) > LARGEST then return false end
  end
  return true
end

local function is_name(text)
  return #text <= LONGEST_NAME and string.find(text, NAME) ~= nil
end

local function parse(ref)
  local head, generation, oldest, newest, bytes, episode, run, actor, incarnation, sequence =
    string.match(ref or '', REF)
  if not head or not is_name(run) or not is_name(actor) then return nil end
  -- the same episode under two ids would be counted twice
  if string.find(incarnation, '^0%d') or string.find(sequence, '^0%d') then return nil end
  local sure = #head <= SURE and #generation <= SURE and #oldest <= SURE and #newest <= SURE and #bytes <= SURE
    and #incarnation <= SURE and #sequence <= SURE
  if not sure and not exact(head, generation, oldest, newest, bytes, incarnation, sequence) then return nil end
  return {ref = ref, head = head, generation = generation, oldest = oldest, newest = newest, bytes = bytes,
    episode = episode, actor = actor, incarnation = incarnation, sequence = sequence}
end

-- A refusal of values that no part of Tamiyo sends; shortened, since it may be of any size and any bytes.
local function malformed(message)
  return redis.error_reply('MALFORMED ' .. string.gsub(string.sub(message, 1, 300), '[^ -~]', '?'))
end

local function parse_entry(entry)
  return entry[2][1] == 'ref' and parse(entry[2][2])
end

-- An error where this generation is not the open one, nil where it is.
local function check_generation(generation, current)
  if tonumber(generation) > current then
    return redis.error_reply('RESET generation ' .. generation .. ' is unknown here, ' .. current .. ' is the last')
  elseif tonumber(generation) < current or current == 0 then
    return redis.error_reply('FENCED generation ' .. generation .. ' is not open, ' .. current .. ' is')
  end
end

-- Beyond what a generation after its own went back to.
local function is_fenced(k, header, current)
  local generation, newest = tonumber(header.generation), tonumber(header.newest)
  for later = generation + 1, current do
    local back = redis.call('HGET', k.generations, 'back:' .. later)
    if back and newest > tonumber(back) then return true end
  end
  return false
end

-- Repeat the stored reply when this very call was answered before and only the answer got lost.
local function once(k, verb, token, run)
  local stored = redis.call('HGET', k.replies, verb)
  if stored and string.sub(stored, 1, #token) == token then
    return cjson.decode(string.sub(stored, #token + 1))
  end
  local reply = run()
  if not reply.err then redis.call('HSET', k.replies, verb, token .. cjson.encode(reply)) end
  return reply
end

local function full(waiting, waiting_bytes, bytes, max_episodes, max_bytes)
  -- an empty queue takes any episode, or one larger than the bound would wait for ever
  return waiting > 0 and (waiting >= max_episodes or waiting_bytes + bytes > max_bytes)
end

local function bury(k, header, reason, letters_kept, max_bytes)
  redis.call('XADD', k.dead, '*', 'ref', header.ref, 'reason', reason)
  count(k, 'dead_lettered', 1)
  count(k, 'dead_bytes', redis.call('STRLEN', k.payload .. header.episode))
  while redis.call('XLEN', k.dead) > tonumber(letters_kept)
    or (redis.call('XLEN', k.dead) > 1 and number(k.ledger, 'dead_bytes') > tonumber(max_bytes)) do
    local oldest = redis.call('XRANGE', k.dead, '-', '+', 'COUNT', 1)[1]
    local evicted = parse_entry(oldest)
    if evicted then
      local payload = k.payload .. evicted.episode
      count(k, 'dead_bytes', -redis.call('STRLEN', payload))
      count(k, 'dead_letters_evicted', 1)
      redis.call('DEL', payload)
    else
      count(k, 'foreign', 1) -- an actor may write into this stream as well
    end
    redis.call('XDEL', k.dead, oldest[1])
  end
end
