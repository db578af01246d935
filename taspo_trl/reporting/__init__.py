"""What a run says of itself: metrics, alerts, traces, the model card, what goes to the Hub."""
