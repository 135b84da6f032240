"""Why the hardware is idle: evidence is recorded, pure rules name the cause, a report tells it."""
