"""orjson, and before it what its C code looks up as it starts.

It takes a look-up that a signal broke off for one that found: a Ctrl-C at that moment would end the process by SIGSEGV
instead of KeyboardInterrupt. What is imported already can't be broken off.
"""

import dataclasses as dataclasses
import datetime as datetime
import enum as enum
import json as json
import uuid as uuid

import orjson as orjson  # noqa: TID251 - this is the place
