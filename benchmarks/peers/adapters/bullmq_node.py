"""BullMQ on Node.js. Producer and worker are bullmq_node.mjs, which speaks child.py's command line."""

NODE = True
PACKAGES = ("bullmq@6.7.0", "ioredis@6.0.0")
ABOUT = {
    "wide": "N node processes, concurrency 100, removeOnComplete",
    "default": "N node processes, concurrency 1, removeOnComplete",
}
BEST = {"times": "default", "idle": "default", "heavy": "default"}
NOTE = "Another language. addBulk in bulk; retries by attempts 2 without backoff; heavy jobs burn 20 ms by the clock."
