-- An actor's verbs: new_incarnation, put, report.

local DAY_MS, MOST_HEALTH_BYTES = 86400000, 16384

-- Numbers of incarnations are times; one of the far future would leave none for those after it.
local function is_ahead(incarnation, latest)
  if latest and tonumber(incarnation) <= (tonumber(latest) or 0) then return false end
  local now = redis.pcall('TIME') -- users from before it was asked for may not
  return not now.err and tonumber(incarnation) > 1000 * tonumber(now[1]) + DAY_MS
end

-- actor, its own clock in ms, for a server that does not tell the time -> {number, 1 for the first of its name else 0}.
-- Numbers are given here, one by one: fleets that start in the same moment would choose the same.
function verbs.new_incarnation(k, args)
  local actor, clock_ms = args[1], tonumber(args[2])
  if not is_name(actor) then return malformed('no name of an actor: ' .. actor) end
  local latest, listed = lives_of(k, actor)
  local now = redis.pcall('TIME')
  if not now.err then clock_ms = 1000 * tonumber(now[1]) + math.floor(tonumber(now[2]) / 1000) end
  local incarnation = string.format('%.0f', math.max(clock_ms, 1 + (tonumber(latest or '0') or 0)))
  enter(k, actor, incarnation, latest, listed)
  return {incarnation, latest and 0 or 1}
end

-- The fields of one incarnation's counts; `latest` and `listed` are what `lives_of` knew.
local function names_of(actor, incarnation, latest, listed)
  local who = 'actor:' .. actor .. '/' .. incarnation .. ':'
  return {latest = latest, listed = listed, next = who .. 'next_sequence', unsent = who .. 'unsent', lost = who .. 'lost_with_actor',
    produced = who .. 'produced', accepted = who .. 'accepted', refused = who .. 'refused_fenced'}
end

-- One of the actor's episodes becomes `term`: it was unsent when last reported, thought lost, or produced since.
local function account(t, n, term)
  if t.get(n.unsent) > 0 then t.add(n.unsent, -1)
  elseif t.get(n.lost) > 0 then t.add(n.lost, -1)
  else t.add(n.produced, 1) end
  t.add(term, 1)
end

local function refuse(payload, status)
  -- a payload without expiry belongs to the accepted entry that this one duplicates
  if redis.call('PTTL', payload) > 0 then redis.call('DEL', payload) end
  return status
end

local function put_one(k, t, n, header, current, max_episodes, max_bytes, max_episode_bytes, letters_kept)
  local payload, bytes = k.payload .. header.episode, tonumber(header.bytes)
  if tonumber(header.sequence) < t.get(n.next) then return refuse(payload, 'DUPLICATE') end
  -- of a generation to come: this store lost its memory, and its learner has yet to open it again
  if tonumber(header.generation) > current then return refuse(payload, 'BUSY') end
  if not n.entered then
    enter(k, header.actor, header.incarnation, n.latest, n.listed)
    n.entered = true
  end
  if is_fenced(k, header, current) then
    account(t, n, n.refused)
    return refuse(payload, 'FENCED')
  end
  local oversize = bytes > max_episode_bytes
  if not oversize then
    if full(t.get('queued'), t.get('queued_bytes'), bytes, max_episodes, max_bytes) then return refuse(payload, 'BUSY') end
    if redis.call('STRLEN', payload) ~= bytes or redis.call('PERSIST', payload) == 0 then
      return refuse(payload, 'MISSING')
    end
  end
  t.set(n.next, header.sequence + 1)
  account(t, n, n.accepted)
  t.add('accepted', 1)
  if oversize then
    redis.call('DEL', payload) -- of another put under this name: a letter that is too large has none
    bury(k, header, bytes .. ' bytes, more than the ' .. max_episode_bytes .. ' allowed', letters_kept, max_bytes)
  else
    redis.call('XADD', k.episodes, '*', 'ref', header.ref)
    t.add('queued', 1)
    t.add('queued_bytes', bytes)
  end
  return 'OK'
end

-- max_episodes, max_bytes, max_episode_bytes, dead_letters_kept, then REF (but the head) of each episode, all of one
-- incarnation -> {head version, status...}. Ends at the first that has to be put again, or a later one would overtake it
-- and make it a duplicate.
function verbs.put(k, args)
  local max_episodes, max_bytes, max_episode_bytes = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  local head, current = head_version(k), number(k.generations, 'current')
  -- all before any of them changes the store: an error does not undo what was written before it
  local headers = {}
  for i = 5, #args do
    local header = parse(head .. ' ' .. args[i])
    if not header then return malformed('no reference of an episode: ' .. args[i]) end
    local first = headers[1] or header
    if header.actor ~= first.actor or header.incarnation ~= first.incarnation then
      return malformed('episodes of two incarnations in one call: ' .. first.episode .. ' and ' .. header.episode)
    end
    headers[#headers + 1] = header
  end
  if #headers == 0 then return {head} end
  local actor, incarnation = headers[1].actor, headers[1].incarnation
  local latest, listed = lives_of(k, actor)
  if is_ahead(incarnation, latest) then
    return malformed('incarnation ' .. incarnation .. ' is more than a day ahead of the store\'s clock')
  end
  local reply, n = {head}, names_of(actor, incarnation, latest, listed)
  n.entered = is_listed(listed, incarnation) or restore(k, actor, incarnation, listed)
  local t = tally(k, {n.next, n.unsent, n.lost, n.produced, n.accepted, 'queued', 'queued_bytes', 'accepted'})
  for _, header in ipairs(headers) do
    local status = put_one(k, t, n, header, current, max_episodes, max_bytes, max_episode_bytes, args[4])
    reply[#reply + 1] = status
    if status == 'BUSY' or status == 'MISSING' then break end
  end
  t.write()
  return reply
end

-- Why a report is none, nil where it is one.
local function fault_of_report(actor, incarnation, counts, health, latest)
  if not is_name(actor) then return 'no name of an actor: ' .. actor end
  for _, text in ipairs({incarnation, unpack(counts)}) do
    if not string.find(text, '^%d+$') or string.find(text, '^0%d') or not exact(text) then return 'no count: ' .. text end
  end
  if is_ahead(incarnation, latest) then
    return 'incarnation ' .. incarnation .. ' is more than a day ahead of the store\'s clock'
  end
  if #health > MOST_HEALTH_BYTES then return #health .. ' bytes of health, more than ' .. MOST_HEALTH_BYTES end
  local readable, figures = pcall(cjson.decode, health)
  if not readable or type(figures) ~= 'table' then return 'no object of figures: ' .. health end
  for name, figure in pairs(figures) do
    if type(name) ~= 'string' or type(figure) ~= 'number' or figure ~= figure or math.abs(figure) == math.huge then
      return 'no object of finite figures: ' .. health
    end
  end
  if not figures.reported_s then return 'no reported_s: ' .. health end
end

-- actor, incarnation, produced, accepted, dropped_backpressure, refused_fenced, unsent, health
function verbs.report(k, args)
  if #args ~= 8 then return malformed(#args .. ' values, a report has 8') end
  local actor, incarnation, health = args[1], args[2], args[8]
  local produced, accepted, dropped, refused, unsent = unpack(args, 3, 7)
  local latest, listed = lives_of(k, actor)
  local fault = fault_of_report(actor, incarnation, {produced, accepted, dropped, refused, unsent}, health, latest)
  if fault then return malformed(fault) end
  enter(k, actor, incarnation, latest, listed)
  local who, lost = 'actor:' .. actor .. '/' .. incarnation .. ':', 0
  local unknown = tonumber(accepted) - number(k.ledger, who .. 'accepted')
  if unknown > 0 then -- accepted by a store that has since lost its memory, and them
    count(k, who .. 'accepted', unknown)
    count(k, 'accepted', unknown)
    count(k, 'lost_with_store', unknown)
  else
    unsent = unsent + unknown
  end
  local gone = latest and tonumber(incarnation) < (tonumber(latest) or 0)
  if gone then lost, unsent = unsent, 0 end
  redis.call('HSET', k.ledger, who .. 'produced', produced, who .. 'dropped_backpressure', dropped,
    who .. 'refused_fenced', refused, who .. 'unsent', unsent, who .. 'lost_with_actor', lost)
  if not gone then redis.call('HSET', k.health, actor .. '/' .. incarnation, health) end
  return 'OK'
end
