"""While Redis is away: jobs go into the spool of this host, some run from there, all come back in exactly once."""
