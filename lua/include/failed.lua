-- What the moves of attempts that did not go well share. `k` holds their keys by name.

-- The notes of the jobs taken, parsed. Those that carry a cancel mark end here, whatever the move: their words say so.
-- Returns the others' places (as fence gave them) with their notes.
local function uncancelled(k, words, current, taken, us)
  local places, notes, gone = {}, {}, {}
  if #taken == 0 then return places, notes end
  for i, note in ipairs(notes_of(k, taken)) do
    if note.cancel == 1 then
      words[current[i]] = 'cancelled'
      gone[#gone + 1] = taken[i]
    else
      places[#places + 1] = current[i]
      notes[#notes + 1] = note
    end
  end
  if #gone > 0 then
    if any_batched(k.meta) then in_batches(k, gone, false, 'cancelled', true, us) end
    forget(k.rows, k.attempts, k.notes, k.priority, k.given, gone, us)
    redis.call('HINCRBY', k.meta, 'cancelled', #gone)
    redis.call('HINCRBY', k.meta, 'marks', -#gone)
  end
  return places, notes
end

-- Its errors get what they shared (see trace).
local function to_dead(k, id, note, reason, us)
  note.reason = reason
  for _ = 1, 2 do
    note.errors = string.gsub(note.errors, '%["(%x+)"%]%]%f[\n%z]', function(ref) return redis.call('HGET', k.traces, ref) end)
  end
  redis.call('ZADD', k.dead, whole(due_ms(us)), id)
  put_notes(k, {id}, {note})
  redis.call('HINCRBY', k.meta, 'dead', 1)
end

-- Those that went to the morgue in one call.
local function all_dead(k, ids, us)
  if #ids > 0 and any_batched(k.meta) then in_batches(k, ids, false, 'dead', false, us) end
end

-- Those that wait for their next attempt are gathered in `later`, and stand there with `all_delayed`.
local function to_delayed(k, later, id, note, ms, us)
  local fire = math.min(fire_ms(us, ms), LATEST_MS) -- an outcome is never refused for its delay
  note.since = fire
  later.ids[#later.ids + 1] = id
  later.notes[#later.notes + 1] = note
  local at = #later.scores
  later.scores[at + 1], later.scores[at + 2] = place_at(k.delayed, fire), id
end

local function all_delayed(k, later)
  if #later.ids == 0 then return end
  put_notes(k, later.ids, later.notes)
  redis.call('ZADD', k.delayed, unpack(later.scores))
end
