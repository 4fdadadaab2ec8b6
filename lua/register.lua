-- register: a worker's lease begins. Ids are never used twice.
--
-- KEYS  1 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--       2 meta         HASH    totals; `lease`: the longest lease in use
-- ARGV  1 worker
--       2 lease        ms
--       3.. command    all that scripts make
--
-- Returns ok | sealed | denied, a command
--! include clock
--! include whole
local leases, meta = unpack(KEYS)
local lease = tonumber(ARGV[2])

local stands = redis.call('ZSCORE', leases, ARGV[1])
if stands and tonumber(stands) == 0 then return {'sealed'} end

-- What a script has written stays where it meets a missing right: who lacks one takes no job.
for i = 3, redis.acl_check_cmd and #ARGV or 0 do
  if not redis.acl_check_cmd(ARGV[i], leases) then return {'denied', ARGV[i]} end
end

redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
redis.call('ZADD', leases, whole(fire_ms(clock(), lease)), ARGV[1])
if lease > tonumber(redis.call('HGET', meta, 'lease') or 0) then redis.call('HSET', meta, 'lease', lease) end
return {'ok'}
