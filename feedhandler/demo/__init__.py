"""The main job shown live and checked: exchange, gateway, subscribers."""
