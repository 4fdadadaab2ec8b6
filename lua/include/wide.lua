-- Up to 512 small fields (128 members) Redis packs a hash (a set) into one list, and each look-up walks it: what a large
-- batch holds is found much faster in a table. A long member makes it one, and it stays one when that is gone again.
local WIDE = string.rep('-', 65)
-- So many members are walked sooner than a table is made.
local MANY = 16
