-- mend: a gate is closed by hand: jobs pass again, and those that wait are called.
--
-- KEYS  1 gates        HASH    gate -> its state
--       2 waiters      ZSET    who waits where, in order
--       3 passed       ZSET    who has passed when, of gates with a rate
--       4 attempts     HASH    id -> claims so far: the token
--       5 delayed      ZSET    fire-time and sequence
--       6 pending      LIST    ids, first come first served
--       7 prioritized  ZSET    ids with a priority
--       8 priority     HASH    id -> priority, where it is not 0
--       9 meta         HASH    totals
--      10 timer        LIST    hints
--      11 wake         LIST    hints
--      12 passes       HASH    id -> the gates that a job has passed, or where it waits
--      13 visits       ZSET    gate -> when it is looked after, ms
-- ARGV  1 gate
--       2 turn         as it was when the caller looked: a late copy of an older call changes nothing
--
-- Returns ok | late
--! include turn
--! include clock
--! include whole
--! include hint
--! include ready
--! include delay
--! include pass
--! include gate
local k = {
  gates = KEYS[1], waiters = KEYS[2], passed = KEYS[3], attempts = KEYS[4], delayed = KEYS[5], pending = KEYS[6],
  prioritized = KEYS[7], priority = KEYS[8], meta = KEYS[9], timer = KEYS[10], wake = KEYS[11],
  passes = KEYS[12], visits = KEYS[13],
}
if not take_turn(k.meta, ARGV[2]) then return {'late'} end
switch(k, ARGV[1], 'closed', 0, clock())
return {'ok'}
