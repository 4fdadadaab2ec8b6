"""Delivering webhooks: a ready handler that signs, posts, and knows which answers mean what. Needs `batchq[webhooks]`.

deliver = batchq.webhooks.register(app, secrets=["whsec_..."])
deliver.enqueue("https://example.org/hook", {"event": "paid"})
"""

from batchq.webhooks.guard import Blocked, host_of
from batchq.webhooks.handler import Delivered, DeliveryFailed, register

__all__ = ["Blocked", "Delivered", "DeliveryFailed", "host_of", "register"]
