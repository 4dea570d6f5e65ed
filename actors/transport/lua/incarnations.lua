-- The ledger's rows of incarnations. Only the newest few incarnations of an actor have rows of their own; older ones
-- are retired and share one row of sums, so that the ledger does not grow with the number of restarts. Their own counts
-- move to the hash `retired`, from which the row is restored if such an incarnation turns out to be alive.

local ROWS_KEPT = 3 -- same as in `ledger.py`
-- Fields in the ledger from which on new names, and older incarnations without a row, are refused. An actor has 9 to 30.
local FULL_LEDGER = 20000
-- The fields of a row, in the order in which `retired` stores them. The first one is not a count and is not summed.
local TERMS = {'next_sequence', 'unsent', 'lost_with_actor', 'produced', 'accepted', 'refused_fenced',
  'dropped_backpressure'}

-- The names of the ledger fields of an incarnation's row.
local function fields_of(actor, incarnation)
  local fields = {}
  for i, term in ipairs(TERMS) do fields[i] = 'actor:' .. actor .. '/' .. incarnation .. ':' .. term end
  return fields
end

local DAY_MS = 86400000

local function clock_ms()
  local now = redis.call('TIME')
  return 1000 * tonumber(now[1]) + math.floor(tonumber(now[2]) / 1000)
end

-- Whether an incarnation's number, a Unix time in ms, is over a day ahead of the clock. It is then invalid: later
-- incarnations need larger numbers.
local function is_in_far_future(incarnation)
  return tonumber(incarnation) > clock_ms() + DAY_MS
end

-- Whether an incarnation has a row of its own.
local function is_listed(listed, incarnation)
  return string.find(' ' .. listed .. ' ', ' ' .. incarnation .. ' ', 1, true) ~= nil
end

-- Return an actor's newest incarnation, nil if it has none, and the incarnations with rows, separated by spaces.
-- Actors may write any value, and after a large number there would be no larger one left; for an incarnation that has a
-- row, this makes no difference.
local function incarnations_of(k, actor, incarnation)
  local found = redis.call('HMGET', k.ledger, 'actor:' .. actor .. ':incarnation', 'actor:' .. actor .. ':listed')
  local latest, listed = found[1] or nil, found[2] or ''
  local is_known = incarnation and is_listed(listed, incarnation)
  if latest and (not string.find(latest, '^%d+$') or not is_known and is_in_far_future(latest)) then
    latest = nil
    for other in string.gmatch(listed, '%d+') do
      if not is_in_far_future(other) then latest = other end
    end
  end
  return latest, listed
end

-- Add `sign` times the values of one incarnation to the actor's shared row.
local function add_to_shared_row(k, actor, values, sign)
  for i = 2, #TERMS do
    count(k, 'actor:' .. actor .. '/retired:' .. TERMS[i], sign * (tonumber(values[i] or '0') or 0))
  end
end

-- Move the row of an incarnation to the shared row.
local function retire(k, actor, incarnation)
  local fields = fields_of(actor, incarnation)
  local values = redis.call('HMGET', k.ledger, unpack(fields))
  for i = 1, #TERMS do values[i] = values[i] or '0' end
  set(k.retired, actor .. '/' .. incarnation, table.concat(values, ' '))
  add_to_shared_row(k, actor, values, 1)
  unset(k.ledger, unpack(fields))
end

-- Record that an incarnation has a row, and retire all rows but the newest `max_rows`.
local function add_to_listed(k, actor, incarnation, listed, max_rows)
  local incarnations = {incarnation}
  for other in string.gmatch(listed, '%d+') do incarnations[#incarnations + 1] = other end
  table.sort(incarnations, function(a, b) return tonumber(a) < tonumber(b) end)
  while #incarnations > max_rows do retire(k, actor, table.remove(incarnations, 1)) end
  set(k.ledger, 'actor:' .. actor .. ':listed', table.concat(incarnations, ' '))
end

-- Give a retired incarnation its own row again; false if it was not retired.
local function restore_row(k, actor, incarnation, listed)
  local kept = redis.call('HGET', k.retired, actor .. '/' .. incarnation)
  if not kept then return false end
  local flat, values = {}, {}
  for value in string.gmatch(kept, '%S+') do values[#values + 1] = value end
  for i, field in ipairs(fields_of(actor, incarnation)) do
    flat[2 * i - 1], flat[2 * i] = field, values[i] or '0'
  end
  set(k.ledger, unpack(flat))
  add_to_shared_row(k, actor, values, -1)
  unset(k.retired, actor .. '/' .. incarnation)
  add_to_listed(k, actor, incarnation, listed, math.huge)
  return true
end

-- Whether an incarnation without a row must be refused, as the ledger has too many rows.
local function has_no_room(k, incarnation, latest, listed)
  if is_listed(listed, incarnation) or latest and tonumber(incarnation) > tonumber(latest) then return false end
  return redis.call('HLEN', k.ledger) >= FULL_LEDGER
end

local NO_ROOM = 'the ledger has more than ' .. FULL_LEDGER .. ' fields: use fewer names for actors'

-- Make sure that an incarnation has a row. If it is the newest, count the unsent episodes of the previous one as lost.
local function register(k, actor, incarnation, latest, listed)
  if is_listed(listed, incarnation) then return end
  local newest = not latest or tonumber(incarnation) > (tonumber(latest) or 0)
  if not newest and restore_row(k, actor, incarnation, listed) then return end
  -- creates the row, so that checkpoints contain it even if none of its episodes is accepted
  local produced = 'actor:' .. actor .. '/' .. incarnation .. ':produced'
  set(k.ledger, produced, number(k.ledger, produced))
  if newest then
    set(k.ledger, 'actor:' .. actor .. ':incarnation', incarnation)
    if latest then
      local previous = 'actor:' .. actor .. '/' .. latest .. ':'
      local unsent = number(k.ledger, previous .. 'unsent')
      set(k.ledger, previous .. 'unsent', 0)
      count(k, previous .. 'lost_with_actor', unsent)
      unset(k.health, actor .. '/' .. latest)
    end
  end
  add_to_listed(k, actor, incarnation, listed, newest and ROWS_KEPT or math.huge)
end
