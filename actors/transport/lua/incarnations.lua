-- The rows of incarnations in the ledger. The newest few of an actor have one each; those before them, which have most
-- likely ended, share one, so that a look at the ledger and a checkpoint cost the same however often actors died. What
-- each of these had is kept apart, where only an incarnation that speaks again after all looks for it.

local ROWS_KEPT = 3
-- Of one incarnation, in the order in which `retired` holds them. The first is no count, and has no sum.
local TERMS = {'next_sequence', 'unsent', 'lost_with_actor', 'produced', 'accepted', 'refused_fenced',
  'dropped_backpressure'}

local function fields_of(actor, incarnation)
  local fields = {}
  for i, term in ipairs(TERMS) do fields[i] = 'actor:' .. actor .. '/' .. incarnation .. ':' .. term end
  return fields
end

-- The newest incarnation of an actor, nil without any, and those that have rows, as text.
local function lives_of(k, actor)
  local found = redis.call('HMGET', k.ledger, 'actor:' .. actor .. ':incarnation', 'actor:' .. actor .. ':listed')
  return found[1] or nil, found[2] or ''
end

local function is_listed(listed, incarnation)
  return string.find(' ' .. listed .. ' ', ' ' .. incarnation .. ' ', 1, true) ~= nil
end

-- Add `sign` times what one incarnation has to the row of those that share one.
local function share(k, actor, values, sign)
  for i = 2, #TERMS do
    count(k, 'actor:' .. actor .. '/retired:' .. TERMS[i], sign * (tonumber(values[i] or '0') or 0))
  end
end

local function retire(k, actor, incarnation)
  local fields = fields_of(actor, incarnation)
  local values = redis.call('HMGET', k.ledger, unpack(fields))
  for i = 1, #TERMS do values[i] = values[i] or '0' end
  redis.call('HSET', k.retired, actor .. '/' .. incarnation, table.concat(values, ' '))
  share(k, actor, values, 1)
  redis.call('HDEL', k.ledger, unpack(fields))
end

-- Note which incarnations have rows, and let only the newest few of them keep theirs.
local function list(k, actor, incarnations, most)
  table.sort(incarnations, function(a, b) return tonumber(a) < tonumber(b) end)
  while #incarnations > most do retire(k, actor, table.remove(incarnations, 1)) end
  redis.call('HSET', k.ledger, 'actor:' .. actor .. ':listed', table.concat(incarnations, ' '))
end

local function add_to_list(k, actor, incarnation, listed, most)
  local incarnations = {incarnation}
  for other in string.gmatch(listed, '%d+') do incarnations[#incarnations + 1] = other end
  list(k, actor, incarnations, most)
end

-- Give an incarnation its own row again; false where it has not been retired.
local function restore(k, actor, incarnation, listed)
  local kept = redis.call('HGET', k.retired, actor .. '/' .. incarnation)
  if not kept then return false end
  local flat, values = {}, {}
  for value in string.gmatch(kept, '%S+') do values[#values + 1] = value end
  for i, field in ipairs(fields_of(actor, incarnation)) do
    flat[2 * i - 1], flat[2 * i] = field, values[i] or '0'
  end
  redis.call('HSET', k.ledger, unpack(flat))
  share(k, actor, values, -1)
  redis.call('HDEL', k.retired, actor .. '/' .. incarnation)
  add_to_list(k, actor, incarnation, listed, math.huge)
  return true
end

-- Enter an incarnation in the ledger; what the one before it had not sent is lost with it.
local function enter(k, actor, incarnation, latest, listed)
  if is_listed(listed, incarnation) then return end
  local newest = not latest or tonumber(incarnation) > (tonumber(latest) or 0)
  if not newest and restore(k, actor, incarnation, listed) then return end
  -- a term of its own, so that a checkpoint remembers it, whatever becomes of its first episode
  redis.call('HINCRBY', k.ledger, 'actor:' .. actor .. '/' .. incarnation .. ':produced', 0)
  if newest then
    redis.call('HSET', k.ledger, 'actor:' .. actor .. ':incarnation', incarnation)
    if latest then
      local before = 'actor:' .. actor .. '/' .. latest .. ':'
      local unsent = number(k.ledger, before .. 'unsent')
      redis.call('HSET', k.ledger, before .. 'unsent', 0)
      count(k, before .. 'lost_with_actor', unsent)
      redis.call('HDEL', k.health, actor .. '/' .. latest)
    end
  end
  add_to_list(k, actor, incarnation, listed, newest and ROWS_KEPT or math.huge)
end

-- Of the whole ledger, which may come from a version that kept a row for each.
local function retire_the_old(k)
  local known = {}
  for _, field in ipairs(redis.call('HKEYS', k.ledger)) do
    local actor, incarnation = string.match(field, '^actor:([^/:]+)/(%d+):')
    if actor then
      known[actor] = known[actor] or {}
      known[actor][incarnation] = true
    end
  end
  for actor, found in pairs(known) do
    local incarnations = {}
    for incarnation in pairs(found) do incarnations[#incarnations + 1] = incarnation end
    list(k, actor, incarnations, ROWS_KEPT)
  end
end
