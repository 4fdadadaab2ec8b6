-- Adds what a script counted to the totals of the queue.
local function count(meta, totals)
  for name, n in pairs(totals) do
    if n ~= 0 then redis.call('HINCRBY', meta, name, n) end
  end
end
