-- Jobs that failed the same way have one traceback, often longer than all else that is kept of them: it stands once. So do
-- the worker and that reference, for the jobs that failed this way at one worker. An entry that may share them comes as
-- '<front>\n<ref>\n<worker>,\n<ref>\n<traceback>]' (no traceback: both are empty), JSON that Lua never reads. Whole it is
-- '<front><worker>,<traceback>]'. What stands for its end is '["<ref>"]]', in an entry and in what is shared. A dead job,
-- and one that waits for long, has its own.
local MOST_TRACES, KEEP_TRACES_MS = 3000, 7776000000 -- 90 days
-- Workers come and go: tracebacks have room beside them.
local MOST_WORKERS = 2000
-- Where there is no room for others, so long at least. Twice as long as a job waits that refers to one.
local LEAST_TRACES_MS = 172800000 -- 2 days

local shared = {}
-- What stands for the end of an entry; false: there is no room, or another end has its ref.
local function share(k, ref, rest, most, us)
  if shared[ref] == nil then
    local stands = redis.call('HGET', k.traces, ref)
    if not stands and redis.call('ZCARD', k.traced) < most then
      redis.call('HSET', k.traces, ref, rest)
      stands = rest
    end
    shared[ref] = stands == rest and '["' .. ref .. '"]]'
    if shared[ref] then redis.call('ZADD', k.traced, whole(due_ms(us)), ref) end
  end
  return shared[ref]
end

local function entry_of(k, text, stays, us)
  local front, ref, worker, trace_ref, trace = string.match(text, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
  if not front then return text end
  if stays then return front .. worker .. trace end
  local short = trace == '' or share(k, trace_ref, trace, MOST_TRACES, us)
  if not short then return front .. worker .. trace end
  local rest = worker .. (trace == '' and '' or short)
  return front .. (share(k, ref, rest, MOST_WORKERS, us) or rest)
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
  local keep = redis.call('ZCARD', traced) < MOST_WORKERS and KEEP_TRACES_MS or LEAST_TRACES_MS
  local old = redis.call('ZRANGEBYSCORE', traced, '-inf', whole(due_ms(us) - keep), 'LIMIT', 0, 100)
  if #old > 0 then
    redis.call('HDEL', traces, unpack(old))
    redis.call('ZREM', traced, unpack(old))
  end
end
