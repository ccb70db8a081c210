"""`signals audit --public`: the checks that any customer can run through the REST API.

The checks import only schemas.vocabulary, and take the schemas of responses from the service's
OpenAPI document: an error in the serving code must not be able to hide itself by also being used
here.
"""
