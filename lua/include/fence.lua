-- Every move out of active passes here. A claim is current when its id stands among this worker's claims and its
-- token is the newest. ARGV holds one job each `step` arguments from `first` on: id, token, ...
-- Checks all, then takes the current ones out of active: the first write of a script is one that Redis allows at maxmemory.
-- Counts nothing: the refusal of a late copy of a call that was done is nobody's fault, and nobody hears it.
-- Returns a word a job (ok | stale | settled), and the places of the current ones (1 is the first job).
local function fence(active, attempts, meta, again, first, step)
  local ids, words, current, taken, seen = {}, {}, {}, {}, {}
  for i = first, #ARGV, step do ids[#ids + 1] = ARGV[i] end
  local held = redis.call('SMISMEMBER', active, unpack(ids))
  local tokens = redis.call('HMGET', attempts, unpack(ids))
  local refused = again == '1' and 'settled' or 'stale'
  for n, id in ipairs(ids) do
    if held[n] == 1 and tokens[n] == ARGV[first + (n - 1) * step + 1] and not seen[id] then
      words[n] = 'ok'
      seen[id] = true
      current[#current + 1] = n
      taken[#taken + 1] = id
    else
      words[n] = refused
    end
  end
  -- Jobs with a cancel mark end in this call, whatever it does.
  if tonumber(redis.call('HGET', meta, 'marks') or 0) > 0 then
    --! check all
  end
  if #taken > 0 then
    redis.call('SREM', active, unpack(taken))
  else
    redis.call('HDEL', meta, '')
  end
  return words, current, taken
end
