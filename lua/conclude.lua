-- conclude: nobody will add jobs to a batch from outside any more: its callbacks are due with the end of its last job.
--
-- KEYS  1 batches      HASH    id -> counts, name and callbacks of a batch
--       2 batch_ends   ZSET    batch -> its end, ms; 2^53-1: not yet
--       3 rows         HASH    id -> packed row
--       4 pending      LIST    ids, first come first served
--       5 meta         HASH    totals
--       6 wake         LIST    hints
-- ARGV  1 batch
--
-- Returns ok | unknown
--! include clock
--! include whole
--! include hint
--! include batch
local k = {batches = KEYS[1], batch_ends = KEYS[2], rows = KEYS[3], pending = KEYS[4], meta = KEYS[5], wake = KEYS[6]}

local text = redis.call('HGET', k.batches, ARGV[1])
if not text then return {'unknown'} end
local b = read_batch(text)
--! check all
redis.call('HDEL', k.meta, '') -- a first write that is allowed at maxmemory
b.closed = 1
save_batch(k, ARGV[1], b, clock())
return {'ok'}
