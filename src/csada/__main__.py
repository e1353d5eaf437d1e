from csada.cli import main

main()
