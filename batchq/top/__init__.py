"""`batchq top`: a live view of queues, workers and the morgue, on one screen.

    look     asks the store, or the control socket while that is away: in a thread of its own, so many commands a second
    morgue   the dead by their errors, read a little at a time
    draw     what is known as lines of text for a screen of that size: pure
    screen   the loop of keys and drawing

The screen never waits for the store: a server that hangs stops the numbers, not the keys.
"""
