"""HTTP and nothing else: what comes in is handed to service.jobs, what is found there is put into documents."""
