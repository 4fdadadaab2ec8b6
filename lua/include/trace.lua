-- Jobs that failed the same way have one traceback, often longer than all else that is kept of them: it stands once.
-- An entry that may share it comes as '<front>\n<ref> <traceback>', both JSON that Lua never reads. Whole it is
-- '<front><traceback>]', shared '<front>["<ref>"]]'. A dead job, and one that waits for long, has its own.
local MOST_TRACES, KEEP_TRACES_MS = 1000, 7776000000 -- 90 days
-- Where there is no room for others, so long at least. Twice as long as a job waits that refers to one.
local LEAST_TRACES_MS = 172800000 -- 2 days

local shared = {}
local function shares(k, ref, trace, us)
  if shared[ref] == nil then
    local stands = redis.call('HEXISTS', k.traces, ref) == 1
    shared[ref] = stands or redis.call('ZCARD', k.traced) < MOST_TRACES
    if not stands and shared[ref] then redis.call('HSET', k.traces, ref, trace) end
    if shared[ref] then redis.call('ZADD', k.traced, whole(due_ms(us)), ref) end
  end
  return shared[ref]
end

local function entry_of(k, text, stays, us)
  local front, ref, trace = string.match(text, '^([^\n]*)\n(%S+) (.*)$')
  if not front then return text end
  if stays or not shares(k, ref, trace, us) then return front .. trace .. ']' end
  return front .. '["' .. ref .. '"]]'
end

-- What nothing refers to any more: who does is alive, by the totals, or kept after it went well.
local function drop_traces(traces, traced, completed, meta, us)
  if redis.call('EXISTS', traced) == 0 then return end
  local alive = 0
  for i, n in ipairs(redis.call('HMGET', meta, 'enqueued', 'requeued', 'completed', 'dead', 'cancelled', 'purged', 'dropped')) do
    alive = alive + (i <= 2 and 1 or -1) * tonumber(n or 0)
  end
  if alive <= 0 and redis.call('ZCARD', completed) == 0 then
    redis.call('DEL', traces, traced)
    return
  end
  local keep = redis.call('ZCARD', traced) < MOST_TRACES and KEEP_TRACES_MS or LEAST_TRACES_MS
  local old = redis.call('ZRANGEBYSCORE', traced, '-inf', whole(due_ms(us) - keep), 'LIMIT', 0, 100)
  if #old > 0 then
    redis.call('HDEL', traces, unpack(old))
    redis.call('ZREM', traced, unpack(old))
  end
end
