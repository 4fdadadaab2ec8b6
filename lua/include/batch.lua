-- Batches: groups of jobs that are counted together. `batches` has one string a batch:
--   <total> <completed> <dead> <cancelled> <closed 0|1> <told complete 0|1> <told success 0|1> <began ms> <ended ms>
-- and, a line each, its name (JSON) and the beginnings of two rows: the callbacks, '' for none. `batched` says of each
-- of their jobs which batch it is in, as long as its row stands; meta's `batched` how many those are.
-- `k` holds by name: batches, batched, batch_ends, rows, pending, meta, wake.

-- `ended` while jobs of the batch are still to end: the last of all ends.
local UNENDED = 9007199254740991

local function read_batch(text)
  local total, completed, dead, cancelled, closed, complete, success, began, ended, name, on_complete, on_success =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d) (%d) (%d) (%d+) (%d+)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
  return {
    total = tonumber(total), completed = tonumber(completed), dead = tonumber(dead), cancelled = tonumber(cancelled),
    closed = tonumber(closed), complete = tonumber(complete), success = tonumber(success),
    began = tonumber(began), ended = tonumber(ended), name = name, on_complete = on_complete, on_success = on_success,
  }
end

local function write_batch(k, id, b)
  local numbers = string.format('%d %d %d %d %d %d %d %d %d', b.total, b.completed, b.dead, b.cancelled,
    b.closed, b.complete, b.success, b.began, b.ended)
  redis.call('HSET', k.batches, id, table.concat({numbers, b.name, b.on_complete, b.on_success}, '\n'))
end

-- One callback: a job like any other. Its argument ends with the counts of this instant.
local function call_back(k, id, head, b, us)
  if head == '' then return end
  local row = string.format('{"t":%d,%s,"total":%d,"completed":%d,"dead":%d,"cancelled":%d}]}', due_ms(us), head,
    b.total, b.completed, b.dead, b.cancelled)
  if redis.call('HEXISTS', k.rows, id) == 1 then return end
  redis.call('HSET', k.rows, id, row)
  redis.call('RPUSH', k.pending, id)
  redis.call('HINCRBY', k.meta, 'enqueued', 1)
  hint(k.wake, 8)
end

-- Stores a batch whose numbers have changed. In the step in which the last job of a closed one ends its callbacks are
-- enqueued, each once: what is requeued later can only add the `success` that was missing.
local function save_batch(k, id, b, us)
  local left = b.total - b.completed - b.dead - b.cancelled
  if left > 0 then
    if b.ended ~= UNENDED then
      b.ended = UNENDED
      redis.call('ZADD', k.batch_ends, whole(UNENDED), id)
    end
  else
    if b.ended == UNENDED then
      b.ended = due_ms(us)
      redis.call('ZADD', k.batch_ends, whole(b.ended), id)
    end
    if b.closed == 1 and b.complete == 0 then
      b.complete = 1
      call_back(k, id .. '.complete', b.on_complete, b, us)
    end
    if b.closed == 1 and b.success == 0 and b.completed == b.total then
      b.success = 1
      call_back(k, id .. '.success', b.on_success, b, us)
    end
  end
  write_batch(k, id, b)
end

-- Counts those of the jobs that are in a batch: out of one column (completed, dead; false: they were pending), into
-- another (completed, dead, cancelled; false: pending again). `gone`: their rows go, nothing will tell of them again.
local function in_batches(k, ids, from, to, gone, us)
  if #ids == 0 then return end
  local counts, order, members = {}, {}, {}
  for i, batch in ipairs(redis.call('HMGET', k.batched, unpack(ids))) do
    if batch then
      if not counts[batch] then order[#order + 1] = batch end
      counts[batch] = (counts[batch] or 0) + 1
      members[#members + 1] = ids[i]
    end
  end
  if #members == 0 then return end
  if gone then
    redis.call('HDEL', k.batched, unpack(members))
    redis.call('HINCRBY', k.meta, 'batched', -#members)
  end
  if not from and not to then return end
  for _, id in ipairs(order) do
    local text = redis.call('HGET', k.batches, id)
    -- A batch is forgotten some days after its end, the dead are kept for longer.
    if text then
      local b = read_batch(text)
      if from then b[from] = b[from] - counts[id] end
      if to then b[to] = b[to] + counts[id] end
      save_batch(k, id, b, us)
    end
  end
end

local function any_batched(meta)
  return tonumber(redis.call('HGET', meta, 'batched') or 0) > 0
end
