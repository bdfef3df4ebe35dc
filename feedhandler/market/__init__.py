"""Markets of any feed: messages normalised to order events, and what books make of them."""
