-- begin: a batch begins. Jobs are added by enqueue; conclude says that no more will come.
--
-- KEYS  1 batches      HASH    id -> counts, name and callbacks of a batch
--       2 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
-- ARGV  1 batch
--       2 name         JSON
--       3 on_complete  beginning of the callback's row, or ''
--       4 on_success   the same
--
-- Returns ok | known
--! include clock
--! include whole
local batches, batch_ends = unpack(KEYS)

if redis.call('HEXISTS', batches, ARGV[1]) == 1 then return {'known'} end
local at = whole(due_ms(clock()))
-- Nothing is pending in it: should nobody ever add a job, it is forgotten like one that has ended.
local numbers = '0 0 0 0 0 0 0 ' .. at .. ' ' .. at
redis.call('HSET', batches, ARGV[1], table.concat({numbers, ARGV[2], ARGV[3], ARGV[4]}, '\n'))
redis.call('ZADD', batch_ends, at, ARGV[1])
return {'ok'}
