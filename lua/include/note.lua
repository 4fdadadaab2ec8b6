-- What attempts left behind, one string a job:
--   <forgiven> <crashes> <lost> <cancel mark 0|1> <ready since, ms> <reason|-> and, a line each, the errors, newest first.
-- The errors are JSON that Lua never reads.
local function read_note(text)
  if not text then
    return {forgiven = 0, crashes = 0, lost = 0, cancel = 0, since = 0, reason = '-', errors = ''}
  end
  local forgiven, crashes, lost, cancel, since, reason, rest =
    string.match(text, '^(%d+) (%d+) (%d+) (%d) (%d+) (%S+)()')
  return {
    forgiven = tonumber(forgiven), crashes = tonumber(crashes), lost = tonumber(lost), cancel = tonumber(cancel),
    since = tonumber(since), reason = reason, errors = string.sub(text, rest),
  }
end

local function write_note(n)
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
