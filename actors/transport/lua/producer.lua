-- An actor's verbs: put, report.

-- Enter an incarnation in the ledger; what the one before it had not sent is lost with it.
local function enter(k, actor, incarnation, latest)
  if latest and tonumber(incarnation) <= tonumber(latest) then return end
  redis.call('HSET', k.ledger, 'actor:' .. actor .. ':incarnation', incarnation)
  -- a term of its own, so that a checkpoint remembers it, whatever becomes of its first episode
  redis.call('HINCRBY', k.ledger, 'actor:' .. actor .. '/' .. incarnation .. ':produced', 0)
  if latest then
    local before = 'actor:' .. actor .. '/' .. latest .. ':'
    local unsent = number(k.ledger, before .. 'unsent')
    redis.call('HSET', k.ledger, before .. 'unsent', 0)
    count(k, before .. 'lost_with_actor', unsent)
    redis.call('HDEL', k.health, actor .. '/' .. latest)
  end
end

-- One of the actor's episodes becomes `term`: it was unsent when last reported, thought lost, or produced since.
local function account(t, who, term)
  if t.get(who .. 'unsent') > 0 then t.add(who .. 'unsent', -1)
  elseif t.get(who .. 'lost_with_actor') > 0 then t.add(who .. 'lost_with_actor', -1)
  else t.add(who .. 'produced', 1) end
  t.add(who .. term, 1)
end

local function put_one(k, t, header, who, current, max_episodes, max_bytes, max_episode_bytes, letters_kept)
  local payload, bytes = k.payload .. header.episode, tonumber(header.bytes)
  local function refuse(status)
    -- a payload without expiry belongs to the accepted entry that this one duplicates
    if redis.call('PTTL', payload) > 0 then redis.call('DEL', payload) end
    return status
  end

  if tonumber(header.sequence) < t.get(who .. 'next_sequence') then return refuse('DUPLICATE') end
  -- of a generation to come: this store lost its memory, and its learner has yet to open it again
  if tonumber(header.generation) > current then return refuse('BUSY') end
  if t.entered ~= who then
    enter(k, header.actor, header.incarnation, redis.call('HGET', k.ledger, 'actor:' .. header.actor .. ':incarnation'))
    t.entered = who
  end
  if is_fenced(k, header, current) then
    account(t, who, 'refused_fenced')
    return refuse('FENCED')
  end
  local oversize = bytes > max_episode_bytes
  if not oversize then
    if full(t.get('queued'), t.get('queued_bytes'), bytes, max_episodes, max_bytes) then return refuse('BUSY') end
    if redis.call('STRLEN', payload) ~= bytes or redis.call('PERSIST', payload) == 0 then return refuse('MISSING') end
  end
  t.set(who .. 'next_sequence', header.sequence + 1)
  account(t, who, 'accepted')
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
-- incarnation -> {head version, status...}. Ends at the first that has to be put again, or a later one would overtake it and make it
-- a duplicate.
function verbs.put(k, args)
  local max_episodes, max_bytes, max_episode_bytes = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  local head, current, t = head_version(k), number(k.generations, 'current'), tally(k)
  local reply = {head}
  for i = 5, #args do
    local header = parse(head .. ' ' .. args[i])
    local who = 'actor:' .. header.actor .. '/' .. header.incarnation .. ':'
    local status = put_one(k, t, header, who, current, max_episodes, max_bytes, max_episode_bytes, args[4])
    reply[#reply + 1] = status
    if status == 'BUSY' or status == 'MISSING' then break end
  end
  t.write()
  return reply
end

-- actor, incarnation, produced, accepted, dropped_backpressure, refused_fenced, unsent, health
function verbs.report(k, args)
  local actor, incarnation = args[1], args[2]
  local produced, accepted, dropped, refused, unsent = unpack(args, 3, 7)
  local latest = redis.call('HGET', k.ledger, 'actor:' .. actor .. ':incarnation')
  enter(k, actor, incarnation, latest)
  local who, lost = 'actor:' .. actor .. '/' .. incarnation .. ':', 0
  local unknown = tonumber(accepted) - number(k.ledger, who .. 'accepted')
  if unknown > 0 then -- accepted by a store that has since lost its memory, and them
    count(k, who .. 'accepted', unknown)
    count(k, 'accepted', unknown)
    count(k, 'lost_with_store', unknown)
  else
    unsent = unsent + unknown
  end
  local gone = latest and tonumber(incarnation) < tonumber(latest)
  if gone then lost, unsent = unsent, 0 end
  redis.call('HSET', k.ledger, who .. 'produced', produced, who .. 'dropped_backpressure', dropped,
    who .. 'refused_fenced', refused, who .. 'unsent', unsent, who .. 'lost_with_actor', lost)
  if not gone then redis.call('HSET', k.health, actor .. '/' .. incarnation, args[8]) end
  return 'OK'
end
