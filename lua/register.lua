-- register: a worker's lease begins. Ids are never used twice.
--
-- KEYS  1 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--       2 meta         HASH    totals; `lease`: the longest lease in use
-- ARGV  1 worker
--       2 lease        ms
--
-- Returns ok | sealed
--! include clock
--! include whole
local leases, meta = unpack(KEYS)
local lease = tonumber(ARGV[2])

local stands = redis.call('ZSCORE', leases, ARGV[1])
if stands and tonumber(stands) == 0 then return {'sealed'} end

redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
redis.call('ZADD', leases, whole(fire_ms(clock(), lease)), ARGV[1])
if lease > tonumber(redis.call('HGET', meta, 'lease') or 0) then redis.call('HSET', meta, 'lease', lease) end
return {'ok'}
