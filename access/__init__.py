"""Who may call: keys and what they are worth. Imports store and schemas."""
