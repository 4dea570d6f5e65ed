-- The actor's verbs: new_incarnation, put, report.

local MAX_HEALTH_BYTES = 16384

-- actor -> {number, 1 if it is the actor's first incarnation else 0}
-- The store assigns the numbers, as actors that start in the same millisecond would choose the same.
function verbs.new_incarnation(k, args)
  local actor = args[1]
  if not is_name(actor) then return malformed('invalid actor name: ' .. actor) end
  local latest, listed = incarnations_of(k, actor)
  if not latest and redis.call('HLEN', k.ledger) >= FULL_LEDGER then return malformed(NO_ROOM) end
  local incarnation = string.format('%.0f', math.max(clock_ms(), 1 + tonumber(latest or '0')))
  register(k, actor, incarnation, latest, listed)
  return {incarnation, latest and 0 or 1}
end

-- The names of an incarnation's ledger fields; `latest` and `listed` are as `incarnations_of` returned them.
local function fields_by_name(actor, incarnation, latest, listed)
  local prefix = 'actor:' .. actor .. '/' .. incarnation .. ':'
  return {latest = latest, listed = listed,
    next = prefix .. 'next_sequence', unsent = prefix .. 'unsent', lost = prefix .. 'lost_with_actor',
    produced = prefix .. 'produced', accepted = prefix .. 'accepted', refused = prefix .. 'refused_fenced'}
end

-- Count one of the actor's episodes as `term`. It was reported as unsent, was counted as lost, or was produced since
-- the last report, in this order of preference.
local function account(t, n, term)
  if t.get(n.unsent) > 0 then t.add(n.unsent, -1)
  elseif t.get(n.lost) > 0 then t.add(n.lost, -1)
  else t.add(n.produced, 1) end
  t.add(term, 1)
end

-- Delete a payload that is not accepted, and return the status.
local function refuse(payload, status)
  -- a payload without expiry belongs to an accepted entry of the same episode
  if redis.call('PTTL', payload) > 0 then last('DEL', payload) end
  return status
end

-- Put one episode; returns its status.
local function put_one(k, t, n, header, current, limits)
  local payload, bytes = k.payload .. header.episode, tonumber(header.bytes)
  if tonumber(header.sequence) < t.get(n.next) then return refuse(payload, 'DUPLICATE') end
  -- no learner has opened this store, which may have lost its memory, or its stream is used up and not yet renewed
  if not limits then return refuse(payload, 'BUSY') end
  if not n.entered then
    register(k, header.actor, header.incarnation, n.latest, n.listed)
    n.entered = true
  end
  if tonumber(header.generation) ~= current and is_fenced(k, header, current) then
    account(t, n, n.refused)
    return refuse(payload, 'FENCED')
  end
  local oversize = bytes > limits.episode_bytes
  if oversize then
    if is_used_up(k.dead) then return refuse(payload, 'BUSY') end
  else
    if is_full(n.waiting, t.get('queued_bytes'), bytes, limits) then return refuse(payload, 'BUSY') end
    if redis.call('STRLEN', payload) ~= bytes or redis.call('PERSIST', payload) == 0 then
      return refuse(payload, 'MISSING')
    end
    undo_with('DEL', payload) -- a retry sets it again
  end
  t.set(n.next, header.sequence + 1)
  account(t, n, n.accepted)
  t.add('accepted', 1)
  if oversize then
    last('DEL', payload) -- from an earlier put under this id; dead letters that are too large have no payload
    add_dead_letter(k, header, 0, bytes .. ' bytes, more than the ' .. limits.episode_bytes .. ' allowed', limits)
  else
    append(k.episodes, 'ref', header.ref)
    n.waiting = n.waiting + 1
    t.add('queued', 1)
    t.add('queued_bytes', bytes)
  end
  return 'OK'
end

-- REFs without the head version, all of one incarnation
-- -> {head version, id of the store's memory, last entry of `room` if an episode is BUSY, statuses...}
-- Stops at the first episode that must be put again: accepting a later one would turn its retry into a duplicate.
function verbs.put(k, args)
  local head = head_version(k)
  -- parse all before the first write, as an error does not roll back earlier writes
  local headers = {}
  for _, ref in ipairs(args) do
    local header = parse(head .. ' ' .. ref)
    if not header then return malformed('invalid episode reference: ' .. ref) end
    local first = headers[1] or header
    if header.actor ~= first.actor or header.incarnation ~= first.incarnation then
      return malformed('episodes of two incarnations in one call: ' .. first.episode .. ' and ' .. header.episode)
    end
    headers[#headers + 1] = header
  end
  local current, limits, store = generation_and_limits(k)
  if #headers == 0 then return {head, store, ''} end
  local actor, incarnation = headers[1].actor, headers[1].incarnation
  local latest, listed = incarnations_of(k, actor, incarnation)
  if not is_listed(listed, incarnation) and is_in_far_future(incarnation) then
    return malformed('incarnation ' .. incarnation .. ' is more than a day ahead of the store\'s clock')
  end
  if has_no_room(k, incarnation, latest, listed) then return malformed(NO_ROOM) end
  if is_used_up(k.episodes) then limits = nil end
  local reply, n = {head, store, ''}, fields_by_name(actor, incarnation, latest, listed)
  n.entered = is_listed(listed, incarnation) or restore_row(k, actor, incarnation, listed)
  local t = tally(k, {n.next, n.unsent, n.lost, n.produced, n.accepted, 'queued', 'queued_bytes', 'accepted'})
  n.waiting = count_waiting(k)
  if n.waiting == 0 and t.get('queued_bytes') ~= 0 then t.set('queued_bytes', 0) end
  for _, header in ipairs(headers) do
    local status = put_one(k, t, n, header, current, limits)
    reply[#reply + 1] = status
    if status == 'BUSY' then
      local newest = redis.call('XREVRANGE', k.room, '+', '-', 'COUNT', 1)[1]
      reply[3] = newest and newest[1] or '0-0'
    end
    if status == 'BUSY' or status == 'MISSING' then break end
  end
  t.write()
  return reply
end

-- id of an episode file, REF without the head version -> as `put`
-- Accepts each episode file once, whoever imports it.
function verbs.import(k, args)
  local original, ref = args[1], args[2]
  local _, _, episode = string.find(ref or '', ' ([^ ]+)$')
  local known = redis.call('HGET', k.imported, original)
  if known then -- perhaps by this call, if its reply was lost
    local status = known == episode and 'OK' or refuse(k.payload .. episode, 'DUPLICATE')
    return {head_version(k), number(k.generations, 'store'), '', status}
  end
  local reply = verbs.put(k, {ref})
  if reply[4] == 'OK' then set(k.imported, original, episode) end
  return reply
end

-- Return why a report is invalid, nil if it is valid.
local function report_fault(actor, incarnation, counts, health)
  if not is_name(actor) then return 'invalid actor name: ' .. actor end
  for _, text in ipairs({incarnation, unpack(counts)}) do
    local is_count = string.find(text, '^%d+$') and not string.find(text, '^0%d') and is_exact(text)
    if not is_count then return 'invalid count: ' .. text end
  end
  if is_in_far_future(incarnation) then
    return 'incarnation ' .. incarnation .. ' is more than a day ahead of the store\'s clock'
  end
  if #health > MAX_HEALTH_BYTES then return #health .. ' bytes of health, more than ' .. MAX_HEALTH_BYTES end
  local readable, figures = pcall(cjson.decode, health)
  if not readable or type(figures) ~= 'table' then return 'health is not a JSON object: ' .. health end
  for name, figure in pairs(figures) do
    if type(name) ~= 'string' or type(figure) ~= 'number' or figure ~= figure or math.abs(figure) == math.huge then
      return 'health figures must be finite numbers: ' .. health
    end
  end
  if not figures.reported_s then return 'health lacks reported_s: ' .. health end
end

-- actor, incarnation, produced, accepted, dropped_backpressure, refused_fenced, unsent, health, store -> 'OK'
-- `store` is the id of the memory that accepted the actor's episodes, 0 if it may have been lost since. Only then may the
-- actor count more accepted episodes than the store.
function verbs.report(k, args)
  if #args ~= 9 then return malformed('a report has 9 values, not ' .. #args) end
  local actor, incarnation, health = args[1], args[2], args[8]
  local produced, accepted, dropped, refused, unsent = unpack(args, 3, 7)
  local latest, listed = incarnations_of(k, actor)
  local fault = report_fault(actor, incarnation, {produced, accepted, dropped, refused, unsent}, health)
  if fault then return malformed(fault) end
  if has_no_room(k, incarnation, latest, listed) then return malformed(NO_ROOM) end
  register(k, actor, incarnation, latest, listed)
  local prefix, lost = 'actor:' .. actor .. '/' .. incarnation .. ':', 0
  local unseen = tonumber(accepted) - number(k.ledger, prefix .. 'accepted')
  if unseen > 0 and args[9] ~= '0' and tonumber(args[9]) == number(k.generations, 'store') then
    error({err = 'MISCOUNT actor ' .. actor .. '/' .. incarnation .. ' counts ' .. unseen ..
      ' accepted episodes more than the store, which has lost nothing since'})
  elseif unseen > 0 then -- accepted by a store that has lost its memory since
    count(k, prefix .. 'accepted', unseen)
    count(k, 'accepted', unseen)
    count(k, 'lost_with_store', unseen)
  else
    unsent = unsent + unseen
  end
  local is_superseded = latest and tonumber(incarnation) < tonumber(latest)
  if is_superseded then lost, unsent = unsent, 0 end
  set(k.ledger, prefix .. 'produced', produced, prefix .. 'dropped_backpressure', dropped,
    prefix .. 'refused_fenced', refused, prefix .. 'unsent', unsent, prefix .. 'lost_with_actor', lost)
  if not is_superseded then set(k.health, actor .. '/' .. incarnation, health) end
  return 'OK'
end
