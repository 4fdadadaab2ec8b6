-- A whole number as text. Lua's own tostring and .. print 14 digits and corrupt times and scores.
local function whole(n)
  return string.format('%d', n)
end
