"""One file a system. The driver reads the constants on top without importing the file; `child` imports it where the
system is installed.

PACKAGES      what its environment has: names and versions of PyPI, or of npm where NODE is True
ALSO          distributions that came with them and whose versions matter
ABOUT         configuration -> how it is run
BEST          question -> configuration; others: the first of ABOUT
NOTE          what has to be known to judge the figures
ASKED         the only questions that it is asked; left off: all
SPOOL         its jobs are in files: there is no Redis to measure
DELIVERS      what its environment has beside, to deliver webhooks; () where it is not asked to

fleet(n)      the commands that start n workers
Producer      open, one(job, delay_s), many(jobs), close: all plain functions, or all coroutines
"""
