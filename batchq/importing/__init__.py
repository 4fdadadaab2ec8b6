"""Bulk import: a file's rows become jobs, each exactly once, in constant memory. What `batchq import` does.

```
source (blocks) → compression → lines → csv_rows | json_rows → Row | Bad → build → NewJob → run (chunks) → Store.enqueue
```

An import is a *lane*, a chunk its call number: `store.enqueue(queue, jobs, Mark(lane, n))` is the checkpoint, in one
step with the rows. So the borders of chunks depend on nothing but the file and the options. No cell's type is guessed.
"""
