"""How fast sweeps are on a Dask cluster of this machine, and what is left when parts are killed."""
