-- Jobs that failed the same way have one traceback, often longer than all else that is kept of them: it stands once, with
-- the kind of the error. So does the worker with a ref to that, for the jobs that failed this way at one worker. An entry
-- that may share them comes as '<front>\n<worker>,\n<traceback>]' ('<front>\n<worker>]\n' without a traceback), JSON that
-- Lua never reads; it is whole without the newlines. What stands for an end is '["<ref>"]]', in an entry and in what is
-- shared. A dead job, and one that waits for long, has its own.
local MOST_TRACES, KEEP_TRACES_MS = 3000, 7776000000 -- 90 days
-- All ends together: workers come and go, and leave room for tracebacks. From here on 14 days.
local MOST_WORKERS, KEEP_WORKERS_MS = 2000, 1209600000
-- Where there is no room at all, so long at least. Twice as long as a job waits that refers to one.
local LEAST_TRACES_MS = 172800000 -- 2 days

local shared = {}
-- What stands for the end of an entry; false: there is no room, or another end has its ref.
local function share(k, rest, most, us)
  if shared[rest] == nil then
    local ref = string.sub(redis.sha1hex(rest), 1, 8)
    local stands = redis.call('HGET', k.traces, ref)
    if not stands and redis.call('ZCARD', k.traced) < most then
      redis.call('HSET', k.traces, ref, rest)
      stands = rest
    end
    shared[rest] = stands == rest and '["' .. ref .. '"]]'
    if shared[rest] then redis.call('ZADD', k.traced, whole(due_ms(us)), ref) end
  end
  return shared[rest]
end

local function entry_of(k, text, stays, us)
  local front, worker, trace = string.match(text, '^([^\n]*)\n([^\n]*)\n(.*)$')
  if not front then return text end
  if stays then return front .. worker .. trace end
  local short = trace == '' and '' or share(k, trace, MOST_TRACES, us)
  if not short then return front .. worker .. trace end
  return front .. (share(k, worker .. short, MOST_WORKERS, us) or worker .. short)
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
  local ends = redis.call('ZCARD', traced)
  local keep = ends < MOST_WORKERS and KEEP_TRACES_MS or ends < MOST_TRACES and KEEP_WORKERS_MS or LEAST_TRACES_MS
  local old = redis.call('ZRANGEBYSCORE', traced, '-inf', whole(due_ms(us) - keep), 'LIMIT', 0, 100)
  if #old > 0 then
    redis.call('HDEL', traces, unpack(old))
    redis.call('ZREM', traced, unpack(old))
  end
end
