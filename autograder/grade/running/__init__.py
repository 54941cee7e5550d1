"""Running a submission: workers, kernels and cells, limits of time, errors carried forward."""
