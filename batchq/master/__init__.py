"""The prefork master: one loop that forks, watches, reaps and keeps the time. It runs no handler, ever."""
