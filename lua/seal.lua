-- seal: a worker is declared gone for good, before its claims are moved.
--
-- KEYS  1 leases       ZSET    worker -> end of its lease, ms; 0: sealed
--       2 active       SET     ids that this worker holds
--       3 attempts     HASH    id -> claims so far: the token
--       4 rows         HASH    id -> packed row, its note before it
--       5 notes        HASH    id -> what attempts left behind
--       6 meta         HASH    totals
-- ARGV  1 worker
--       2 expected     the lease end that was looked at, or '' for any
--
-- Returns unknown | renewed | ok, id, token, row, note, ...
local leases, active, attempts, rows, notes, meta = unpack(KEYS)

local stands = redis.call('ZSCORE', leases, ARGV[1])
if not stands then return {'unknown'} end
if tonumber(stands) ~= 0 and ARGV[2] ~= '' and tonumber(stands) ~= tonumber(ARGV[2]) then return {'renewed'} end

redis.call('HDEL', meta, '') -- a first write that is allowed at maxmemory
if tonumber(stands) ~= 0 then
  redis.call('ZADD', leases, 'XX', 0, ARGV[1])
  redis.call('HINCRBY', meta, 'reaped', redis.call('SCARD', active))
end
local answer = {'ok'}
for _, id in ipairs(redis.call('SMEMBERS', active)) do
  local at = #answer
  answer[at + 1] = id
  answer[at + 2] = redis.call('HGET', attempts, id) or '0'
  answer[at + 3] = redis.call('HGET', rows, id) or ''
  answer[at + 4] = redis.call('HGET', notes, id) or ''
end
return answer
