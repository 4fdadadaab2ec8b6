-- What attempts left behind, one string a job:
--   <forgiven> <crashes> <lost> <cancel mark 0|1> <ready since, ms> <reason|-> and, a line each, the errors, newest first.
-- Of most there is nothing but the errors to say: <ready since, ms> stands alone then.
-- The errors are JSON that Lua never reads.
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
