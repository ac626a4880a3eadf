"""Does what users send through engines arrive whole, with real workers?"""
