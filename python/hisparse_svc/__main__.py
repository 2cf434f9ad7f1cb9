"""`python -m hisparse_svc` is `hisparse-svc`."""

from hisparse_svc.cli.app import main

if __name__ == "__main__":
    main()
