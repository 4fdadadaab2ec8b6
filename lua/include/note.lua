-- What attempts left behind, one string a job:
--   <forgiven> <crashes> <lost> <cancel mark 0|1> <ready since, ms> <reason|-> and, a line each, the errors, newest first.
-- Of most there is nothing but the errors to say: <ready since, ms> stands alone then.
-- The errors are JSON that Lua never reads.
-- It stands before the job's row, '<note>\n\n{<row>', while the two are small: an entry of its own takes some 70 bytes
-- beside what it says (measured). Others stand in `notes`: with large ones, for the row is written again with its note, and
-- with a cancel mark, which is looked for without reading rows. What stands there once stays there.
local NEAR = 1024

-- The two in one; false: they stand apart.
local function near(note, row)
  return note ~= '' and string.find(row, '^{') and #note + 2 + #row <= NEAR and note .. '\n\n' .. row
end

local function read_note(text)
  text = text or '0'
  local plain, behind = string.match(text, '^(%d+)%f[\n%z]()')
  if plain then
    return {
      forgiven = 0, crashes = 0, lost = 0, cancel = 0, since = tonumber(plain), reason = '-',
      errors = string.sub(text, behind),
    }
  end
  local forgiven, crashes, lost, cancel, since, reason, rest =
    string.match(text, '^(%d+) (%d+) (%d+) (%d) (%d+) (%S+)()')
  if not forgiven then return read_note() end -- somebody's slip
  return {
    forgiven = tonumber(forgiven), crashes = tonumber(crashes), lost = tonumber(lost), cancel = tonumber(cancel),
    since = tonumber(since), reason = reason, errors = string.sub(text, rest),
  }
end

local function write_note(n)
  if n.forgiven + n.crashes + n.lost + n.cancel == 0 and n.reason == '-' then
    return string.format('%d', n.since) .. n.errors
  end
  return string.format('%d %d %d %d %d %s', n.forgiven, n.crashes, n.lost, n.cancel, n.since, n.reason) .. n.errors
end

-- Puts an error in front and keeps the newest five.
local function add_error(note, entry)
  if entry == '' then return end
  local from, kept = 1, 0
  while kept < 4 do
    local at = string.find(note.errors, '\n', from + 1, true)
    kept = kept + 1
    if not at then from = #note.errors + 1 break end
    from = at
  end
  note.errors = '\n' .. entry .. string.sub(note.errors, 1, from - 1)
end

-- The notes of these jobs, parsed; `row` is the row of those that may stand before it. `k` holds by name: rows, notes.
local function notes_of(k, ids)
  local notes, small, places = {}, {}, {}
  local apart = redis.call('EXISTS', k.notes) == 1 and redis.call('HMGET', k.notes, unpack(ids))
  for i, id in ipairs(ids) do
    notes[i] = apart and apart[i]
    if not notes[i] then
      local bytes = redis.call('HSTRLEN', k.rows, id)
      if bytes > 0 and bytes <= NEAR then small[#small + 1], places[#places + 1] = id, i end
    end
    notes[i] = read_note(notes[i])
  end
  if #small > 0 then
    for n, text in ipairs(redis.call('HMGET', k.rows, unpack(small))) do
      local till = string.find(text, '^%d') and string.find(text, '\n\n{', 1, true)
      local note = read_note(till and string.sub(text, 1, till - 1))
      note.row, note.near = till and string.sub(text, till + 2) or text, till
      notes[places[n]] = note
    end
  end
  return notes
end

-- Stores what notes_of gave, changed since.
local function put_notes(k, ids, notes)
  local rows, apart = {}, {}
  for i, id in ipairs(ids) do
    local note, text = notes[i], write_note(notes[i])
    local both = note.row and note.cancel == 0 and near(text, note.row)
    if both then
      rows[#rows + 1], rows[#rows + 2] = id, both
    else
      apart[#apart + 1], apart[#apart + 2] = id, text
      if note.near then rows[#rows + 1], rows[#rows + 2] = id, note.row end
    end
  end
  if #rows > 0 then redis.call('HSET', k.rows, unpack(rows)) end
  if #apart > 0 then redis.call('HSET', k.notes, unpack(apart)) end
end
