"""`signals audit --public`: what any customer can check through the REST interface alone.

Imports schemas.vocabulary and nothing else of this project; commands import it.
"""
