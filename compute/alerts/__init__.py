"""The alert engines and their publisher with its cooldown; pure, imported only by compute."""
