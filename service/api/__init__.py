"""The HTTP layer: routes, requests and responses. The work is done in service.jobs."""
