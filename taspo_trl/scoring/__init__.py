"""What the frozen policy says of its own tokens with and without guidance: plans, paired forwards, projection."""
